// AnswerWatchThread: puts a question each second, one at a time, and tells what its AnswerWatch makes of the answers.
// It waits for none of them, and logs what changes.
//
// Thread safety: safe. Nothing blocks but Stop.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/coordinator/answer_watch.h"

namespace stemma::server {

class AnswerWatchThread {
 public:
  // `ask` puts a question: what it is given is called once, from any thread, when it is answered. `on_change` is called
  // by this thread.
  AnswerWatchThread(std::function<void(std::function<void()>)> ask, AnswerWatch watch, const Clock& clock,
                    std::function<void(Answering)> on_change, absl::Duration look_every = kLookEvery);
  ~AnswerWatchThread() { Stop(); }

  // Idempotent.
  void Stop();

 private:
  using Answer = std::shared_ptr<std::atomic<bool>>;  // whether it has come

  void Run();
  Answer Ask() const;
  bool Sleep();  // false: stopped

  const std::function<void(std::function<void()>)> ask_;
  AnswerWatch watch_;  // of thread_
  const Clock& clock_;
  const std::function<void(Answering)> on_change_;
  const absl::Duration look_every_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace stemma::server
