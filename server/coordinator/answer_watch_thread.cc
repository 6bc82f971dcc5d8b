#include "server/coordinator/answer_watch_thread.h"

#include <optional>
#include <utility>

#include "common/base/steady_time.h"
#include "server/coordinator/logged_reasons.h"

namespace stemma::server {

AnswerWatchThread::AnswerWatchThread(std::function<void(std::function<void()>)> ask, AnswerWatch watch,
                                     const Clock& clock, std::function<void(Answering)> on_change,
                                     absl::Duration look_every)
    : ask_(std::move(ask)),
      watch_(std::move(watch)),
      clock_(clock),
      on_change_(std::move(on_change)),
      look_every_(look_every),
      thread_([this] { Run(); }) {}

void AnswerWatchThread::Stop() {
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void AnswerWatchThread::Run() {
  Answer answer = Ask();
  while (Sleep()) {
    const bool answered = *answer;
    if (const std::optional<AnswerWatch::Change> change = watch_.Look(SteadyNow(clock_), answered)) {
      Log(change->reason);
      on_change_(change->now);
    }
    if (answered) answer = Ask();
  }
}

// The answer may come when this object is gone.
AnswerWatchThread::Answer AnswerWatchThread::Ask() const {
  auto answer = std::make_shared<std::atomic<bool>>(false);
  ask_([answer] { *answer = true; });
  return answer;
}

bool AnswerWatchThread::Sleep() {
  MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_; }, look_every_);
  return !stopped_;
}

}  // namespace stemma::server
