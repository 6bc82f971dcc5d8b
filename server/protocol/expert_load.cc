#include "server/protocol/expert_load.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

using internal::v1::LayerExpertLoad;
using internal::v1::Vote;
using Counts = google::protobuf::RepeatedField<uint64_t>;

void AddCounts(const Counts& from, Counts& to) {
  for (int e = 0; e < from.size(); ++e) to.Set(e, to.Get(e) + from.Get(e));
}

std::span<const uint64_t> Span(const Counts& counts) { return {counts.data(), static_cast<size_t>(counts.size())}; }

double Sum(std::span<const uint64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), 0.0,
                         [](double sum, uint64_t count) { return sum + static_cast<double>(count); });
}

// Returns how many times an even share the largest part has; 0 where there is nothing. `parts`: neighbours of equal
// numbers of counts.
double LargestShare(std::span<const uint64_t> counts, size_t parts) {
  const size_t of_part = counts.size() / parts;
  double largest = 0;
  for (size_t part = 0; part < parts; ++part) largest = std::max(largest, Sum(counts.subspan(part * of_part, of_part)));
  return largest == 0 ? 0 : largest * static_cast<double>(parts) / Sum(counts);
}

}  // namespace

absl::Status CheckExpertLoad(const v1::Mesh& mesh, const ModelConfig& model, uint32_t rank, const Vote& vote) {
  if (vote.expert_load().empty()) return absl::OkStatus();
  if (!model.experts) return absl::InvalidArgumentError("vote.expert_load is told, and the model has no experts");
  if (PlaceOf(mesh, rank).tp_rank > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("vote.expert_load is told by rank ", rank, ", and another rank speaks for its copy of the model"));
  }
  int64_t next = 0;
  for (const LayerExpertLoad& load : vote.expert_load()) {
    if (load.layer() < next || load.layer() >= model.num_layers) {
      return absl::InvalidArgumentError(absl::StrCat("vote.expert_load tells of layer ", load.layer(), " behind layer ",
                                                     next - 1, "; the model has ", model.num_layers));
    }
    next = int64_t{load.layer()} + 1;
    for (const Counts* counts : {&load.logical_rows(), &load.computed_rows()}) {
      if (counts->size() == model.experts->count) continue;
      return absl::InvalidArgumentError(absl::StrCat("vote.expert_load tells of ", counts->size(), " experts in layer ",
                                                     load.layer(), ", the model has ", model.experts->count));
    }
  }
  return absl::OkStatus();
}

void MergeExpertLoad(const Vote& from, Vote& to) {
  for (const LayerExpertLoad& load : from.expert_load()) {
    const auto same = std::find_if(to.mutable_expert_load()->begin(), to.mutable_expert_load()->end(),
                                   [&](const LayerExpertLoad& told) { return told.layer() == load.layer(); });
    if (same == to.mutable_expert_load()->end()) {
      *to.add_expert_load() = load;
      continue;
    }
    AddCounts(load.logical_rows(), *same->mutable_logical_rows());
    AddCounts(load.computed_rows(), *same->mutable_computed_rows());
  }
}

void SetExpertMetrics(const Vote& merged, uint32_t expert_sets, google::protobuf::Map<std::string, double>& metrics) {
  double of_experts = 0, of_ranks = 0, idle = 0;
  for (const LayerExpertLoad& load : merged.expert_load()) {
    const std::span<const uint64_t> logical = Span(load.logical_rows()), computed = Span(load.computed_rows());
    of_experts = std::max(of_experts, LargestShare(logical, logical.size()));
    of_ranks = std::max(of_ranks, LargestShare(computed, expert_sets));
    idle += static_cast<double>(std::count(computed.begin(), computed.end(), uint64_t{0}));
  }
  if (of_experts == 0) return;  // nothing ran
  metrics["moe/expert_load_max"] = of_experts;
  metrics["moe/idle_experts"] = idle;
  if (expert_sets > 1) metrics["moe/rank_load_max"] = of_ranks;
}

}  // namespace stemma::server
