#include "worker/optim/shard_exchange.h"

#include <ATen/ops/zeros.h>
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "common/cost/state_shards.h"

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

ShardExchange::ShardExchange(Communicator& ranks, const OptimizerShards& shards, std::vector<Parameter>& parameters,
                             std::unique_ptr<SideQueue> side_queue)
    : ranks_(ranks),
      parameters_(parameters),
      rounds_(ranks.size() > 1 ? shards.Rounds() : std::vector<ShardRound>{}),
      final_from_(static_cast<int64_t>(parameters.size())) {
  CHECK_EQ(static_cast<int64_t>(ranks.size()), shards.ranks());
  if (rounds_.empty()) return;
  side_queue_ = std::move(side_queue);
  int64_t part_elements = 0;
  for (const ShardRound& round : rounds_) part_elements = std::max(part_elements, round.part_elements);
  const at::Tensor& grad = parameters.front().grad;  // no smaller than a weight's elements
  const int64_t part_bytes = part_elements * static_cast<int64_t>(grad.element_size());
  const auto take = [&](int64_t parts) { return at::zeros({parts * part_bytes}, grad.options().dtype(at::kByte)); };
  flights_.resize(std::min(rounds_.size(), static_cast<size_t>(kRoundsInFlight)));
  for (Flight& flight : flights_) flight = {take(ranks.size()), take(ranks.size()), take(1), nullptr};
}

ShardExchange::~ShardExchange() {
  for (Flight& flight : flights_) {
    if (flight.pending != nullptr) flight.pending->Wait().IgnoreError();  // the generation has ended
  }
}

at::Tensor ShardExchange::Gradients(const SlabPiece& piece) const {
  return Parameter::Elements(parameters_[static_cast<size_t>(piece.parameter)].grad, piece.begin, piece.count);
}

at::Tensor ShardExchange::Weight(const SlabPiece& piece) const {
  return Parameter::Elements(parameters_[static_cast<size_t>(piece.parameter)].weight, piece.begin, piece.count);
}

void ShardExchange::GradientsAreFinal(int64_t first) {
  CHECK_LT(first, final_from_) << "gradients are final twice in a step";
  final_from_ = first;
  RunBeside([this] { Advance(); });
}

void ShardExchange::AllGradientsAreFinal() {
  final_from_ = 0;
  RunBeside([this] { Advance(); });
}

absl::Status ShardExchange::FinishReduction() {
  CHECK_EQ(final_from_, 0) << "gradients are not final yet";
  RunBeside([this] {
    for (Advance(); ended_ < started_; Advance()) EndReduce();
  });
  if (side_queue_ != nullptr) side_queue_->ComputeWaits();
  final_from_ = static_cast<int64_t>(parameters_.size());
  started_ = ended_ = 0;
  return std::exchange(error_, absl::OkStatus());
}

void ShardExchange::RunBeside(const std::function<void()>& work) {
  side_queue_ == nullptr ? work() : side_queue_->Run(work);
}

bool ShardExchange::NextIsFinal() const {
  return error_.ok() && started_ < rounds_.size() && ReduceRound(started_).first_parameter() >= final_from_;
}

// In a side queue the wait for a round is the queue's, and the host has none.
bool ShardExchange::CanEnd() {
  if (ended_ == started_) return false;
  return FlightOf(ended_).pending->Done() || (side_queue_ != nullptr && NextIsFinal() && !HasFreeFlight());
}

void ShardExchange::Advance() {
  for (;;) {
    if (CanEnd()) {
      EndReduce();
    } else if (NextIsFinal() && HasFreeFlight()) {
      StartReduce();
    } else {
      return;
    }
  }
}

void ShardExchange::StartReduce() {
  const ShardRound& round = ReduceRound(started_);
  Flight& flight = FlightOf(started_++);
  const at::ScalarType dtype = parameters_.front().grad.scalar_type();
  const int64_t elements = ranks_.size() * round.part_elements;
  const at::Tensor all = Buffer(flight.all_parts, dtype, elements);
  at::Tensor own = Buffer(flight.own_part, dtype, round.part_elements);
  ForAllPieces(round, all, [&](const SlabPiece& p, const at::Tensor& to) { to.copy_(Gradients(p)); });
  flight.pending = ranks_.StartReduceScatterSum(kGradientsName, all, own, Buffer(flight.scratch, dtype, elements));
}

void ShardExchange::EndReduce() {
  const ShardRound& round = ReduceRound(ended_);
  Flight& flight = FlightOf(ended_++);
  const absl::Status status = std::exchange(flight.pending, nullptr)->Wait();
  error_.Update(status);
  if (!status.ok()) return;
  const at::Tensor own = Buffer(flight.own_part, parameters_.front().grad.scalar_type(), round.part_elements);
  ForPieces(round.parts[static_cast<size_t>(ranks_.rank())], own,
            [&](const SlabPiece& p, const at::Tensor& from) { Gradients(p).copy_(from); });
}

absl::Status ShardExchange::GatherWeights() {
  CHECK_EQ(started_, ended_) << "a reduction is in flight";
  absl::Status status;
  for (size_t i = 0; i < rounds_.size() + flights_.size(); ++i) {
    if (i >= flights_.size()) status.Update(EndGather(i - flights_.size()));
    if (i < rounds_.size() && status.ok()) StartGather(i);
  }
  return status;
}

void ShardExchange::StartGather(size_t i) {
  const ShardRound& round = rounds_[i];
  Flight& flight = FlightOf(i);
  const at::ScalarType dtype = parameters_.front().weight.scalar_type();
  at::Tensor all = Buffer(flight.all_parts, dtype, ranks_.size() * round.part_elements);
  const at::Tensor own = Buffer(flight.own_part, dtype, round.part_elements);
  ForPieces(round.parts[static_cast<size_t>(ranks_.rank())], own,
            [&](const SlabPiece& p, const at::Tensor& to) { to.copy_(Weight(p)); });
  flight.pending = ranks_.StartAllGather(kWeightsName, own, all);
}

absl::Status ShardExchange::EndGather(size_t i) {
  Flight& flight = FlightOf(i);
  if (flight.pending == nullptr) return absl::OkStatus();  // an error came before it
  if (absl::Status status = std::exchange(flight.pending, nullptr)->Wait(); !status.ok()) return status;
  const ShardRound& round = rounds_[i];
  const at::Tensor all =
      Buffer(flight.all_parts, parameters_.front().weight.scalar_type(), ranks_.size() * round.part_elements);
  ForAllPieces(round, all, [&](const SlabPiece& p, const at::Tensor& from) { Weight(p).copy_(from); });
  return absl::OkStatus();
}

}  // namespace stemma::worker
