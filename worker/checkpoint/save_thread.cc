#include "worker/checkpoint/save_thread.h"

#include <glog/logging.h>

#include <utility>

namespace stemma::worker {

SaveThread::~SaveThread() {
  cancelled_ = true;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool SaveThread::Reserve() {
  MutexLock lock(&mutex_);
  if (reserved_) return false;
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  reserved_ = true;
  return true;
}

void SaveThread::Release() {
  MutexLock lock(&mutex_);
  reserved_ = false;
}

void SaveThread::Run(Job job) {
  MutexLock lock(&mutex_);
  CHECK(reserved_ && job_ == nullptr);
  job_ = std::move(job);
}

void SaveThread::Loop() {
  const auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || job_ != nullptr; };
  while (true) {
    Job job;
    {
      MutexLock lock(&mutex_);
      mutex_.Await(awake);
      if (job_ == nullptr) return;
      job = std::exchange(job_, nullptr);
    }
    job(cancelled_);
  }
}

}  // namespace stemma::worker
