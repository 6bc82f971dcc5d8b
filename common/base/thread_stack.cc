#include "common/base/thread_stack.h"

#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <ctime>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/steady_time.h"
#include "glog/logging.h"

namespace stemma {
namespace {

constexpr int kFramesMax = 64;
constexpr int kFramesOfHandler = 2;  // Answer, and the kernel's return from it
constexpr size_t kSymbolBytesMax = 512;

// What the handler fills in; it may use nothing that is not async-signal-safe.
std::atomic<pthread_t> asked = 0;  // the thread that is to answer
void* frames[kFramesMax];
std::atomic<int> num_frames = 0;
sem_t answered;

void Answer(int) {
  const int saved = errno;
  pthread_t self = pthread_self();
  if (asked.compare_exchange_strong(self, 0)) {
    num_frames = backtrace(frames, kFramesMax);
    sem_post(&answered);
  }
  errno = saved;
}

int Signal() { return SIGRTMIN + 1; }  // nobody else's here

void Prepare() {
  static const bool once = [] {
    void* frame = nullptr;
    backtrace(&frame, 1);  // loads its library, which a handler may not
    PCHECK(sem_init(&answered, /*pshared=*/0, 0) == 0);
    struct sigaction action = {};
    action.sa_handler = Answer;
    action.sa_flags = SA_RESTART;
    PCHECK(sigaction(Signal(), &action, nullptr) == 0);
    return true;
  }();
  CHECK(once);
}

bool WaitAnswered(absl::Duration within) {
  // By the clock that nobody sets: a jump of the other one would end the wait at once, or make it long.
  const timespec until = absl::ToTimespec(SteadyNow(RealClock()) + within);
  while (sem_clockwait(&answered, CLOCK_MONOTONIC, &until) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

std::string FunctionName(void* frame) {
  char name[kSymbolBytesMax];
  // The byte before a return address is in the call.
  const void* const call = static_cast<const char*>(frame) - 1;
  return absl::Symbolize(call, name, sizeof(name)) ? name : "?";
}

}  // namespace

std::string StackOf(pthread_t thread, absl::Duration within) {
  Prepare();
  asked = thread;
  if (pthread_kill(thread, Signal()) != 0 || !WaitAnswered(within)) {
    if (asked.exchange(0) != 0 || !WaitAnswered(within)) return "";  // else it has just begun to answer
  }
  std::string stack;
  for (int i = kFramesOfHandler; i < num_frames; ++i) absl::StrAppend(&stack, FunctionName(frames[i]), "\n");
  return stack;
}

}  // namespace stemma
