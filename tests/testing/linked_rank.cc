#include "tests/testing/linked_rank.h"

#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "glog/logging.h"

namespace stemma::testing {
namespace {

class LinkedRank final : public Communicator {
 public:
  LinkedRank(std::unique_ptr<Communicator> right, const Link& link)
      : Communicator(right->axis(), right->rank(), right->size()), right_(std::move(right)), link_(link) {}

 private:
  StartedCall Start(const CollectiveCall& call) override {
    at::Tensor output = call.output;
    std::shared_ptr<PendingCollective> pending;
    if (call.kind == CollectiveKind::kAllGather) {
      pending = right_->StartAllGather(call.name, call.input, output);
    } else if (call.kind == CollectiveKind::kReduceScatterSum) {
      pending = right_->StartReduceScatterSum(call.name, call.input, output, call.scratch);
    } else if (call.kind == CollectiveKind::kAgree) {
      const absl::Status status =
          right_->Agree(call.name, {output.data_ptr<int64_t>(), static_cast<size_t>(output.numel())});
      return {[status] { return status; }};
    } else {
      LOG(FATAL) << "no test sends a " << KindName(call.kind) << " over a link";
    }
    const at::Tensor& whole = call.kind == CollectiveKind::kAllGather ? call.output : call.input;
    const int64_t bytes = CollectiveBytes(call.kind, static_cast<int64_t>(whole.nbytes()), size());
    const double there_s = RealClock().MonotonicSeconds() + link_.seconds(bytes);
    return {[pending, there_s] {
      const absl::Status status = pending->Wait();
      const double left_s = there_s - RealClock().MonotonicSeconds();
      if (left_s > 0) RealClock().Sleep(absl::Seconds(left_s));
      return status;
    }};
  }

  const std::unique_ptr<Communicator> right_;
  const Link link_;
};

}  // namespace

std::unique_ptr<Communicator> MakeLinkedRank(std::unique_ptr<Communicator> right, const Link& link) {
  return std::make_unique<LinkedRank>(std::move(right), link);
}

}  // namespace stemma::testing
