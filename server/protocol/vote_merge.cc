#include "server/protocol/vote_merge.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "server/protocol/expert_load.h"

namespace stemma::server {
namespace {

using google::protobuf::FieldDescriptor;
using internal::v1::StepSums;
using internal::v1::Vote;

// Ranks work side by side, each by its own clock and in its own memory.
constexpr std::string_view kLargest[] = {"prefix_forward_s",  "suffix_s",
                                         "prefix_backward_s", "prefix_forward_bytes",
                                         "suffix_bytes",      "prefix_backward_bytes",
                                         "peak_bytes",        "state_bytes",
                                         "host_bytes",        "agree_s",
                                         "split_s",           "reduce_overlapped_s",
                                         "tensor_parallel_s", "context_parallel_s",
                                         "pipeline_s",        "parameters_s",
                                         "log_probs_s"};
// What the rank takes that ends its phases last: the others wait for it.
constexpr std::string_view kSmallest[] = {"reduce_s"};

// Sums over all ranks, whatever they run. All other sums are over what ranks have
// computed, of which one of each tp axis of the last stage tells.
constexpr std::string_view kTotals[] = {
    "offload_out_bytes", "offload_in_bytes",      "offload_demand_loads",   "offload_waits",  "reduce_bytes",
    "split_bytes",       "tensor_parallel_bytes", "context_parallel_bytes", "pipeline_bytes", "parameters_bytes"};

bool IsIn(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <typename T>
T Merged(std::string_view name, T a, T b) {
  return IsIn(kLargest, name) ? std::max(a, b) : IsIn(kSmallest, name) ? std::min(a, b) : a + b;
}

void MergeInto(const StepSums& from, StepSums& to) {
  const google::protobuf::Reflection& reflection = *from.GetReflection();
  for (int i = 0; i < from.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = from.GetDescriptor()->field(i);
    const std::string_view name = field->name();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      reflection.SetDouble(&to, field,
                           Merged(name, reflection.GetDouble(to, field), reflection.GetDouble(from, field)));
    } else {
      reflection.SetUInt64(&to, field,
                           Merged(name, reflection.GetUInt64(to, field), reflection.GetUInt64(from, field)));
    }
  }
}

// The rank that says why; votes.size(): all say yes.
size_t FirstReason(std::span<const Vote> votes) {
  const auto has_reason = [](const Vote& vote) { return !vote.yes() && vote.no_reason() != internal::v1::PEER; };
  const auto with_reason = std::find_if(votes.begin(), votes.end(), has_reason);
  const auto first_no = std::find_if(votes.begin(), votes.end(), [](const Vote& vote) { return !vote.yes(); });
  return static_cast<size_t>((with_reason != votes.end() ? with_reason : first_no) - votes.begin());
}

double ValueOf(const StepSums& sums, const FieldDescriptor* field) {
  const google::protobuf::Reflection& reflection = *sums.GetReflection();
  return field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE ? reflection.GetDouble(sums, field)
                                                              : static_cast<double>(reflection.GetUInt64(sums, field));
}

}  // namespace

absl::Status CheckVote(const v1::Mesh& mesh, const ModelConfig& model, uint32_t rank, const Vote& vote) {
  if (!vote.yes() && vote.no_reason() == internal::v1::CANCELLED) {
    return absl::InvalidArgumentError("a step that nobody cancelled is voted CANCELLED");
  }
  RETURN_IF_ERROR(CheckExpertLoad(mesh, model, rank, vote));
  const MeshPlace place = PlaceOf(mesh, rank);
  if (place.tp_rank == 0 && place.pp_rank == PpSize(mesh) - 1) return absl::OkStatus();
  const StepSums& sums = vote.sums();
  for (int i = 0; i < sums.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = sums.GetDescriptor()->field(i);
    const bool of_copy =
        !IsIn(kLargest, field->name()) && !IsIn(kSmallest, field->name()) && !IsIn(kTotals, field->name());
    if (!of_copy || ValueOf(sums, field) == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("vote.sums.", field->name(), " is told by rank ", rank,
                                                   ", and another rank speaks for its copy of the model"));
  }
  return absl::OkStatus();
}

Vote MergeVotes(std::span<const Vote> votes) {
  CHECK(!votes.empty());
  Vote merged = votes.front();
  merged.clear_spans();  // each rank's own
  for (const Vote& vote : votes.subspan(1)) {
    merged.set_grad_norm_squared(merged.grad_norm_squared() + vote.grad_norm_squared());
    merged.set_empty(merged.empty() && vote.empty());
    MergeInto(vote.sums(), *merged.mutable_sums());
    MergeExpertLoad(vote, merged);
  }
  const size_t no = FirstReason(votes);
  merged.set_yes(no == votes.size());
  if (merged.yes()) return merged;
  merged.set_no_reason(votes[no].no_reason());
  merged.set_message(votes.size() == 1 ? votes[no].message() : absl::StrCat("rank ", no, ": ", votes[no].message()));
  return merged;
}

}  // namespace stemma::server
