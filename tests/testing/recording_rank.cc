#include "tests/testing/recording_rank.h"

#include <utility>

#include "glog/logging.h"

namespace stemma::testing {
namespace {

using Tell = std::function<void(const std::string&, bool)>;

// A call in flight; one that is dropped after an error of another has ended, too.
class InFlight {
 public:
  InFlight(std::unique_ptr<PendingCollective> pending, const Tell& tell, std::string name)
      : pending_(std::move(pending)), tell_(tell), name_(std::move(name)) {}
  ~InFlight() {
    if (pending_ != nullptr) Wait().IgnoreError();
  }

  bool Done() const { return pending_->Done(); }
  absl::Status Wait() {
    absl::Status status = std::exchange(pending_, nullptr)->Wait();
    tell_(name_, false);
    return status;
  }

 private:
  std::unique_ptr<PendingCollective> pending_;
  const Tell& tell_;
  const std::string name_;
};

class RecordingRank final : public Communicator {
 public:
  RecordingRank(std::unique_ptr<Communicator> right, DoneIs done, Tell tell)
      : Communicator(right->axis(), right->rank(), right->size()),
        right_(std::move(right)),
        done_(done),
        tell_(std::move(tell)) {}

 private:
  StartedCall Start(const CollectiveCall& call) override {
    tell_(call.name, true);
    std::unique_ptr<PendingCollective> pending = Pending(call);
    if (pending == nullptr) {
      const absl::Status status = Make(call);
      tell_(call.name, false);
      return {[status] { return status; }};
    }
    const auto flight = std::make_shared<InFlight>(std::move(pending), tell_, call.name);
    return {[flight] { return flight->Wait(); },
            [this, flight] { return done_ == DoneIs::kWhenItIs && flight->Done(); }};
  }

  std::unique_ptr<PendingCollective> Pending(const CollectiveCall& call) {
    at::Tensor output = call.output;
    switch (call.kind) {
      case CollectiveKind::kReduceScatterSum:
        return right_->StartReduceScatterSum(call.name, call.input, output, call.scratch);
      case CollectiveKind::kAllGather:
        return right_->StartAllGather(call.name, call.input, output);
      default:
        return nullptr;
    }
  }

  absl::Status Make(const CollectiveCall& call) {
    at::Tensor output = call.output;
    switch (call.kind) {
      case CollectiveKind::kAllReduceSum:
        return right_->AllReduceSum(call.name, output);
      case CollectiveKind::kAgree:
        return right_->Agree(call.name, {output.data_ptr<int64_t>(), static_cast<size_t>(output.numel())});
      case CollectiveKind::kSend:
        return right_->Send(call.name, call.input, call.peer);
      case CollectiveKind::kReceive:
        return right_->Receive(call.name, output, call.peer);
      default:
        LOG(FATAL) << "a step makes no " << KindName(call.kind);
    }
  }

  const std::unique_ptr<Communicator> right_;
  const DoneIs done_;
  const Tell tell_;
};

}  // namespace

std::unique_ptr<Communicator> MakeRecordingRank(std::unique_ptr<Communicator> right, DoneIs done,
                                                std::function<void(const std::string& name, bool begins)> tell) {
  return std::make_unique<RecordingRank>(std::move(right), done, std::move(tell));
}

}  // namespace stemma::testing
