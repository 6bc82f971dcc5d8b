// Runs a function unless it is stopped in time: a stream whose client sends, or reads, nothing more.
//
// Thread safety: Start and Stop by one thread at a time. The function may still run while Stop returns: it must check.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "grpcpp/alarm.h"
#include "server/rpc/from_now.h"

namespace stemma::server {

class IdleTimer {
 public:
  explicit IdleTimer(absl::Duration after) : after_(after) {}

  // Starts it now; an earlier start is stopped. `when_idle` holds what it needs alive.
  void Start(std::function<void()> when_idle) {
    alarm_ = std::make_unique<grpc::Alarm>();  // one alarm serves once; its end stops it
    alarm_->Set(FromNow(after_), [when_idle = std::move(when_idle)](bool expired) {
      if (expired) when_idle();
    });
  }
  void Stop() { alarm_.reset(); }

 private:
  const absl::Duration after_;
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace stemma::server
