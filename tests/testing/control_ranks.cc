#include "tests/testing/control_ranks.h"

#include <ATen/ops/roll.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "glog/logging.h"
#include "tests/testing/passed_send.h"

namespace stemma::testing {
namespace {

// Makes each call of the right ranks, and then spoils what came of it.
class ControlRank final : public Communicator {
 public:
  using Spoil = std::function<void(const CollectiveCall& call, Communicator& right)>;

  ControlRank(std::unique_ptr<Communicator> right, Spoil spoil)
      : Communicator(right->axis(), right->rank(), right->size()), right_(std::move(right)), spoil_(std::move(spoil)) {}

 private:
  StartedCall Start(const CollectiveCall& call) override {
    if (call.kind == CollectiveKind::kSend) return PassSend(*right_, call);
    CollectiveCall made = call;
    if (call.input.defined() && call.output.defined()) made.input = call.input.clone();  // an output may overwrite it
    // Begins beside what the rank runs, as in the right ranks: stages of its copy may wait for that.
    if (call.kind == CollectiveKind::kReduceScatterSum) {
      at::Tensor output = call.output;
      const std::shared_ptr<PendingCollective> pending = right_->StartReduceScatterSum(call.name, call.input, output);
      return {[this, pending, made] {
        const absl::Status status = pending->Wait();
        if (status.ok()) spoil_(made, *right_);
        return status;
      }};
    }
    const absl::Status status = Make(call);
    if (status.ok()) spoil_(made, *right_);
    return {[status] { return status; }};
  }

  absl::Status Make(const CollectiveCall& call) {
    at::Tensor output = call.output;
    switch (call.kind) {
      case CollectiveKind::kAllReduceSum:
        return right_->AllReduceSum(call.name, output);
      case CollectiveKind::kAllGather:
        return right_->AllGather(call.name, call.input, output);
      case CollectiveKind::kAgree:
        return right_->Agree(call.name, {output.data_ptr<int64_t>(), static_cast<size_t>(output.numel())});
      case CollectiveKind::kReceive:
        return right_->Receive(call.name, output, call.peer);
      default:
        LOG(FATAL) << "a step makes no " << KindName(call.kind);
    }
  }

  const std::unique_ptr<Communicator> right_;
  const Spoil spoil_;
};

at::Tensor OwnPart(const at::Tensor& all, const Communicator& rank) {
  const int64_t part = all.numel() / rank.size();
  return all.view(-1).narrow(0, rank.rank() * part, part);
}

void SkipReduction(const CollectiveCall& call, Communicator& right) {
  if (call.kind == CollectiveKind::kReduceScatterSum) call.output.view(-1).copy_(OwnPart(call.input, right));
}

void MeanForSum(const CollectiveCall& call, Communicator& right) {
  if (call.kind == CollectiveKind::kReduceScatterSum) at::Tensor(call.output).div_(right.size());
}

void SkipPartial(const CollectiveCall& call, Communicator&) {
  if (call.kind == CollectiveKind::kAllReduceSum) at::Tensor(call.output).copy_(call.input);
}

void SwapWeights(const CollectiveCall& call, Communicator& right) {
  if (call.kind != CollectiveKind::kAllGather) return;
  const at::Tensor all = call.output;
  all.copy_(all.roll(all.numel() / right.size()));
}

// Gives each rank the part of the sum that is its neighbour's.
void GradientsOfOthers(const CollectiveCall& call, Communicator& right) {
  if (call.kind != CollectiveKind::kReduceScatterSum) return;
  at::Tensor all = call.output.new_empty({right.size() * call.output.numel()});
  at::Tensor own = call.output.contiguous();
  CHECK(right.AllGather("control", own.view(-1), all).ok());
  at::Tensor(call.output)
      .view(-1)
      .copy_(all.roll(call.output.numel()).narrow(0, right.rank() * own.numel(), own.numel()));
}

void HiddenOfOthers(const CollectiveCall& call, Communicator&) {
  const at::Tensor values = call.output;
  if (call.kind == CollectiveKind::kReceive && call.name == "hidden") values.copy_(values.roll(1, 0));
}

void HiddenGradientsDropped(const CollectiveCall& call, Communicator&) {
  if (call.kind == CollectiveKind::kReceive && call.name == "hidden_gradients") at::Tensor(call.output).zero_();
}

void TiedGradientsApart(const CollectiveCall& call, Communicator&) {
  if (call.kind == CollectiveKind::kReceive && call.name == "partial_gradients") at::Tensor(call.output).zero_();
}

bool ReceivesGradients(const CollectiveCall& call) {
  return call.kind == CollectiveKind::kReceive && (call.name == "split.gk" || call.name == "split.gv");
}

void SplitWrongRows(const CollectiveCall& call, Communicator&) {
  const at::Tensor values = call.output;
  if (ReceivesGradients(call)) values.copy_(values.roll(1, 0));
}

void SplitDropped(const CollectiveCall& call, Communicator&) {
  if (ReceivesGradients(call)) at::Tensor(call.output).zero_();
}

void SplitTwice(const CollectiveCall& call, Communicator&) {
  if (ReceivesGradients(call)) at::Tensor(call.output).mul_(2);
}

// Keeps the K, and the V, that came last.
ControlRank::Spoil SplitOtherLayer() {
  return [last = std::map<std::string, at::Tensor>()](const CollectiveCall& call, Communicator&) mutable {
    if (call.kind != CollectiveKind::kReceive) return;
    if (call.name == "split.word") last.clear();
    if (call.name != "split.k" && call.name != "split.v") return;
    const at::Tensor now = call.output.clone();
    if (last.contains(call.name)) at::Tensor(call.output).copy_(last[call.name]);
    last[call.name] = now;
  };
}

// Spoils the calls of this name alone.
ControlRank::Spoil Only(std::string name, ControlRank::Spoil spoil) {
  return [name = std::move(name), spoil = std::move(spoil)](const CollectiveCall& call, Communicator& right) {
    if (call.name == name) spoil(call, right);
  };
}

const std::map<std::string, ControlRank::Spoil>& CutSpoils() {
  static const auto* const spoils = new std::map<std::string, ControlRank::Spoil>{
      {"cut_skipped_reduction", Only("cut_gradients", SkipReduction)},
      {"cut_mean_for_sum", Only("cut_gradients", MeanForSum)},
      {"cut_gradients_of_others", Only("cut_gradients", GradientsOfOthers)},
      {"cut_kv_of_others", Only("cut_kv", SwapWeights)},
      {"cut_log_probs_of_others", Only("cut_log_probs", SwapWeights)},
  };
  return *spoils;
}

}  // namespace

std::unique_ptr<Communicator> MakeControlRank(const std::string& name, std::unique_ptr<Communicator> right) {
  if (name == "skipped_reduction") return std::make_unique<ControlRank>(std::move(right), SkipReduction);
  if (name == "mean_for_sum") return std::make_unique<ControlRank>(std::move(right), MeanForSum);
  if (name == "skipped_partial") return std::make_unique<ControlRank>(std::move(right), SkipPartial);
  if (name == "swapped_weights") return std::make_unique<ControlRank>(std::move(right), SwapWeights);
  if (name == "gradients_of_others") return std::make_unique<ControlRank>(std::move(right), GradientsOfOthers);
  if (name == "kv_of_others") return std::make_unique<ControlRank>(std::move(right), SwapWeights);
  if (name == "hidden_of_others") return std::make_unique<ControlRank>(std::move(right), HiddenOfOthers);
  if (name == "hidden_gradients_dropped")
    return std::make_unique<ControlRank>(std::move(right), HiddenGradientsDropped);
  if (name == "tied_gradients_apart") return std::make_unique<ControlRank>(std::move(right), TiedGradientsApart);
  if (name == "split_wrong_rows") return std::make_unique<ControlRank>(std::move(right), SplitWrongRows);
  if (name == "split_dropped") return std::make_unique<ControlRank>(std::move(right), SplitDropped);
  if (name == "split_twice") return std::make_unique<ControlRank>(std::move(right), SplitTwice);
  if (name == "split_other_layer") return std::make_unique<ControlRank>(std::move(right), SplitOtherLayer());
  const auto cut = CutSpoils().find(name);
  return cut == CutSpoils().end() ? nullptr : std::make_unique<ControlRank>(std::move(right), cut->second);
}

}  // namespace stemma::testing
