#include "tests/testing/control_ranks.h"

#include <ATen/ops/roll.h>

#include <functional>
#include <utility>

#include "glog/logging.h"

namespace stemma::testing {
namespace {

// Makes each call of the right ranks, and then spoils what came of it.
class ControlRank final : public Communicator {
 public:
  using Spoil = std::function<void(const CollectiveCall& call, Communicator& right)>;

  ControlRank(std::unique_ptr<Communicator> right, Spoil spoil)
      : Communicator(right->axis(), right->rank(), right->size()), right_(std::move(right)), spoil_(std::move(spoil)) {}

 private:
  std::function<absl::Status()> Start(const CollectiveCall& call) override {
    const absl::Status status = Make(call);
    if (status.ok()) spoil_(call, *right_);
    return [status] { return status; };
  }

  absl::Status Make(const CollectiveCall& call) {
    at::Tensor output = call.output;
    switch (call.kind) {
      case CollectiveKind::kReduceScatterSum:
        return right_->ReduceScatterSum(call.name, call.input, output);
      case CollectiveKind::kAllGather:
        return right_->AllGather(call.name, call.input, output);
      case CollectiveKind::kAgree:
        return right_->Agree(call.name, {output.data_ptr<int64_t>(), static_cast<size_t>(output.numel())});
      default:
        LOG(FATAL) << "a step makes no " << KindName(call.kind);
    }
  }

  const std::unique_ptr<Communicator> right_;
  const Spoil spoil_;
};

at::Tensor OwnPart(const at::Tensor& all, const Communicator& rank) {
  const int64_t part = all.numel() / rank.size();
  return all.narrow(0, rank.rank() * part, part);
}

void SkipReduction(const CollectiveCall& call, Communicator& right) {
  if (call.kind == CollectiveKind::kReduceScatterSum) at::Tensor(call.output).copy_(OwnPart(call.input, right));
}

void MeanForSum(const CollectiveCall& call, Communicator& right) {
  if (call.kind == CollectiveKind::kReduceScatterSum) at::Tensor(call.output).div_(right.size());
}

void SwapWeights(const CollectiveCall& call, Communicator& right) {
  if (call.kind != CollectiveKind::kAllGather) return;
  const at::Tensor all = call.output;
  all.copy_(all.roll(all.numel() / right.size()));
}

}  // namespace

std::unique_ptr<Communicator> MakeControlRank(const std::string& name, std::unique_ptr<Communicator> right) {
  if (name == "skipped_reduction") return std::make_unique<ControlRank>(std::move(right), SkipReduction);
  if (name == "mean_for_sum") return std::make_unique<ControlRank>(std::move(right), MeanForSum);
  if (name == "swapped_weights") return std::make_unique<ControlRank>(std::move(right), SwapWeights);
  return nullptr;
}

}  // namespace stemma::testing
