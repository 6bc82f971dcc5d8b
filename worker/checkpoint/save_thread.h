// Runs the writing of a save beside the engine: one job at a time, on a thread of its own, which it keeps. Owned by
// the engine thread, which takes the thread before it copies the state, so that no copy is made in vain.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace stemma::worker {

class SaveThread {
 public:
  // `cancelled` is true once the thread is being destroyed: the job is to end.
  using Job = std::function<void(const std::atomic<bool>& cancelled)>;

  SaveThread() = default;
  SaveThread(const SaveThread&) = delete;
  SaveThread& operator=(const SaveThread&) = delete;
  ~SaveThread();  // waits for the job

  // Takes the thread for one job, which Run then begins. False: it is taken.
  bool Reserve();
  void Run(Job job);
  // Lets another job be taken: called by the job at its end, or instead of Run.
  void Release();

 private:
  void Loop();

  Mutex mutex_;
  bool reserved_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Job job_ ABSL_GUARDED_BY(mutex_);  // that has not begun
  std::atomic<bool> cancelled_ = false;
  std::thread thread_;
};

}  // namespace stemma::worker
