#include "server/protocol/gang.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "server/planner/memory_division.h"
#include "server/protocol/worker_messages.h"

namespace stemma::server {

Gang::Gang(GangOptions options) : options_(std::move(options)), config_(options_.config) {}

absl::StatusOr<internal::v1::Configure> Gang::Join(absl::Time now, SessionId session,
                                                   const internal::v1::Register& message, uint64_t step) {
  if (worker_) return absl::FailedPreconditionError("another worker is connected");
  const WorkerMemory memory = {static_cast<int64_t>(message.memory_free_bytes()),
                               static_cast<int64_t>(message.host_free_bytes()),
                               static_cast<int64_t>(message.memory_bytes())};
  ASSIGN_OR_RETURN(divided_, DivideMemory(options_.model, memory, options_.config));
  worker_ = Worker{.session = session,
                   .incarnation = message.incarnation(),
                   .device = message.device(),
                   .host = WorkerText(message.host()),
                   .pid = message.pid()};
  silent_for_ = absl::ZeroDuration();
  loading_.emplace("loading the model", LoadSeconds(options_.model, RunDtypeOf(options_.config.dtype())),
                   options_.stalled_after);
  next_look_ = now + kLookEvery;
  internal::v1::Configure configure;
  configure.set_epoch(options_.epoch);
  configure.set_generation(++generation_);
  *configure.mutable_config() = divided_;
  configure.set_data_directory(options_.data_directory);
  configure.set_step(step);
  return configure;
}

absl::Status Gang::BecomeReady(const internal::v1::Ready& message) {
  CHECK(present());
  if (worker_->ready) return absl::InvalidArgumentError("a second Ready in one session");
  worker_->ready = true;
  loading_.reset();
  ever_served_ = true;
  missing_since_ = absl::InfiniteFuture();
  config_ = divided_;
  config_.set_threads(message.config().threads());
  return absl::OkStatus();
}

void Gang::Leave(absl::Time now) {
  worker_.reset();
  loading_.reset();
  if (missing_since_ == absl::InfiniteFuture()) missing_since_ = now;
}

internal::v1::StepKey Gang::Key() const {
  internal::v1::StepKey key;
  key.set_epoch(options_.epoch);
  key.set_incarnation(worker().incarnation);
  key.set_generation(generation_);
  return key;
}

absl::Duration Gang::Pass(absl::Time now) {
  const absl::Duration passed = counted_.Until(now);
  next_look_ = worker_ ? std::min(next_look_, now + kLookEvery) : absl::InfiniteFuture();
  if (!worker_) return absl::ZeroDuration();
  silent_for_ += passed;
  if (loading_) loading_->Pass(passed);
  return passed;
}

void Gang::Look(absl::Time now) {
  if (now >= next_look_) next_look_ = now + kLookEvery;
}

std::string Gang::Problem() const {
  if (!worker_) return "";
  if (silent_for_ >= options_.lost_after) {
    return absl::StrCat("no heartbeat for ", absl::FormatDuration(options_.lost_after));
  }
  return loading_ ? loading_->Problem() : "";
}

}  // namespace stemma::server
