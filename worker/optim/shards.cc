#include "worker/optim/shards.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/round_up.h"
#include "common/cost/state_slabs.h"

namespace stemma::worker {
namespace {

// Elements [begin, end) of a bucket, in which every parameter takes a multiple of the slab unit.
ParameterRanges Part(const std::vector<int64_t>& parameter_elements, int64_t first, int64_t last, int64_t begin,
                     int64_t end) {
  ParameterRanges ranges;
  int64_t place = 0;  // of the parameter in the bucket
  for (int64_t p = first; p < last; ++p) {
    const int64_t elements = parameter_elements[static_cast<size_t>(p)];
    const int64_t from = std::max<int64_t>(begin - place, 0), to = std::min(end - place, elements);
    if (from < to) ranges.push_back({p, from, to - from});
    place += RoundUpToSlabUnit(elements);
  }
  return ranges;
}

}  // namespace

int64_t ShardRound::first_parameter() const {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const Slab& part : parts) {
    if (!part.empty()) first = std::min(first, part.front().parameter);
  }
  return first;
}

OptimizerShards::OptimizerShards(const std::vector<int64_t>& parameter_elements, int64_t ranks, int64_t bucket_elements)
    : ranks_(ranks), owned_(static_cast<size_t>(ranks)) {
  CHECK_GE(ranks, 1);
  CHECK_GE(bucket_elements, 1);
  const auto count = static_cast<int64_t>(parameter_elements.size());
  for (int64_t first = 0, last = 0; first < count; first = last) {
    int64_t elements = 0;
    while (last < count && elements < bucket_elements) {
      elements += RoundUpToSlabUnit(parameter_elements[static_cast<size_t>(last++)]);
    }
    AddBucket(parameter_elements, first, last);
  }
}

OptimizerShards::OptimizerShards(const std::vector<int64_t>& parameter_elements, int64_t ranks,
                                 const std::vector<int64_t>& bucket_begins)
    : ranks_(ranks), owned_(static_cast<size_t>(ranks)) {
  CHECK_GE(ranks, 1);
  CHECK(!bucket_begins.empty() && bucket_begins.front() == 0) << "the first bucket begins with the first parameter";
  for (size_t i = 0; i < bucket_begins.size(); ++i) {
    const bool is_last = i + 1 == bucket_begins.size();
    const int64_t last = is_last ? static_cast<int64_t>(parameter_elements.size()) : bucket_begins[i + 1];
    CHECK_LT(bucket_begins[i], last) << "a bucket without parameters";
    AddBucket(parameter_elements, bucket_begins[i], last);
  }
}

void OptimizerShards::AddBucket(const std::vector<int64_t>& parameter_elements, int64_t first, int64_t last) {
  int64_t elements = 0;
  for (int64_t p = first; p < last; ++p) elements += RoundUpToSlabUnit(parameter_elements[static_cast<size_t>(p)]);
  const int64_t part = RoundUpToSlabUnit(DivideUp(elements, ranks_));
  std::vector<ParameterRanges>& parts = buckets_.emplace_back();
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    parts.push_back(Part(parameter_elements, first, last, rank * part, (rank + 1) * part));
    ParameterRanges& owned = owned_[static_cast<size_t>(rank)];
    owned.insert(owned.end(), parts.back().begin(), parts.back().end());
  }
}

std::vector<ShardRound> OptimizerShards::Rounds(int64_t round_elements) const {
  const int64_t part_elements = RoundPartElements(round_elements, ranks_);
  std::vector<ShardRound> rounds;
  for (const std::vector<ParameterRanges>& bucket : buckets_) {
    const size_t first = rounds.size();
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      std::vector<Slab> slabs = CutSlabs(bucket[static_cast<size_t>(rank)], part_elements);
      if (rounds.size() < first + slabs.size()) rounds.resize(first + slabs.size());
      for (size_t i = 0; i < slabs.size(); ++i) {
        ShardRound& round = rounds[first + i];
        round.parts.resize(static_cast<size_t>(ranks_));
        const int64_t end = slabs[i].back().slab_begin + RoundUpToSlabUnit(slabs[i].back().count);
        round.part_elements = std::max(round.part_elements, end);
        round.parts[static_cast<size_t>(rank)] = std::move(slabs[i]);
      }
    }
  }
  return rounds;
}

}  // namespace stemma::worker
