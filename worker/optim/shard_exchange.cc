#include "worker/optim/shard_exchange.h"

#include <ATen/ops/zeros.h>
#include <glog/logging.h>

#include <algorithm>

#include "common/base/status_macros.h"

namespace stemma::worker {
namespace {

at::Tensor Buffer(const at::Tensor& bytes, at::ScalarType dtype, int64_t elements) {
  return bytes.view(dtype).narrow(0, 0, elements);
}

// Calls copy(piece, its place in the part) for a part of a buffer and the elements of parameters that it stands for.
template <typename Copy>
void ForPieces(const Slab& slab, const at::Tensor& part, const Copy& copy) {
  for (const SlabPiece& piece : slab) copy(piece, part.narrow(0, piece.slab_begin, piece.count));
}

// The same for the parts of all owners, one after the other.
template <typename Copy>
void ForAllPieces(const ShardRound& round, const at::Tensor& all_parts, const Copy& copy) {
  int64_t begin = 0;
  for (const Slab& slab : round.parts) {
    ForPieces(slab, all_parts.narrow(0, begin, round.part_elements), copy);
    begin += round.part_elements;
  }
}

}  // namespace

ShardExchange::ShardExchange(Communicator& ranks, const OptimizerShards& shards, std::vector<Parameter>& parameters)
    : ranks_(ranks), parameters_(parameters), rounds_(ranks.size() > 1 ? shards.Rounds() : std::vector<ShardRound>{}) {
  CHECK_EQ(static_cast<int64_t>(ranks.size()), shards.ranks());
  int64_t part_elements = 0;
  for (const ShardRound& round : rounds_) part_elements = std::max(part_elements, round.part_elements);
  if (rounds_.empty()) return;
  const at::Tensor& grad = parameters.front().grad;  // no smaller than a weight's elements
  const int64_t part_bytes = part_elements * static_cast<int64_t>(grad.element_size());
  all_parts_ = at::zeros({part_bytes * shards.ranks()}, grad.options().dtype(at::kByte));
  own_part_ = at::zeros({part_bytes}, grad.options().dtype(at::kByte));
}

absl::Status ShardExchange::ReduceGradients() {
  const auto gradients = [&](const SlabPiece& piece) {
    return Parameter::Elements(parameters_[static_cast<size_t>(piece.parameter)].grad, piece.begin, piece.count);
  };
  const at::ScalarType dtype = parameters_.front().grad.scalar_type();
  for (const ShardRound& round : rounds_) {
    at::Tensor all = Buffer(all_parts_, dtype, ranks_.size() * round.part_elements);
    at::Tensor own = Buffer(own_part_, dtype, round.part_elements);
    ForAllPieces(round, all, [&](const SlabPiece& p, const at::Tensor& to) { to.copy_(gradients(p)); });
    RETURN_IF_ERROR(ranks_.ReduceScatterSum("gradients", all, own));
    ForPieces(round.parts[static_cast<size_t>(ranks_.rank())], own,
              [&](const SlabPiece& p, const at::Tensor& from) { gradients(p).copy_(from); });
  }
  return absl::OkStatus();
}

absl::Status ShardExchange::GatherWeights() {
  const auto weights = [&](const SlabPiece& piece) {
    return Parameter::Elements(parameters_[static_cast<size_t>(piece.parameter)].weight, piece.begin, piece.count);
  };
  const at::ScalarType dtype = parameters_.front().weight.scalar_type();
  for (const ShardRound& round : rounds_) {
    at::Tensor all = Buffer(all_parts_, dtype, ranks_.size() * round.part_elements);
    at::Tensor own = Buffer(own_part_, dtype, round.part_elements);
    ForPieces(round.parts[static_cast<size_t>(ranks_.rank())], own,
              [&](const SlabPiece& p, const at::Tensor& to) { to.copy_(weights(p)); });
    RETURN_IF_ERROR(ranks_.AllGather("weights", own, all));
    ForAllPieces(round, all, [&](const SlabPiece& p, const at::Tensor& from) { weights(p).copy_(from); });
  }
  return absl::OkStatus();
}

}  // namespace stemma::worker
