#include "server/protocol/step_trace.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/message_sizes.h"
#include "common/base/names.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

using v1::StepSpan;

// Exact as a double, and longer than any step: 104 days.
constexpr uint64_t kNanosecondsMax = uint64_t{1} << 53;
constexpr uint64_t kBytesMax = uint64_t{1} << 60;

absl::Status CheckSpan(const StepSpan& span) {
  const auto wrong = [](std::string_view field, uint64_t value) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(field), " is ", value));
  };
  const auto is_name = [](const std::string& text) {
    return text.empty() || (text.size() <= kSpanNameBytesMax && CheckFileName(text).ok());
  };
  if (!StepSpan::Kind_IsValid(span.kind()) || span.kind() == StepSpan::KIND_UNSPECIFIED) {
    return wrong("kind", static_cast<uint64_t>(span.kind()));
  }
  if (span.start_ns() > kNanosecondsMax) return wrong("start_ns", span.start_ns());
  if (span.duration_ns() > kNanosecondsMax) return wrong("duration_ns", span.duration_ns());
  if (span.held_ns() > span.duration_ns()) return wrong("held_ns", span.held_ns());
  if (span.bytes() > kBytesMax) return wrong("bytes", span.bytes());
  if (!is_name(span.collective())) return absl::InvalidArgumentError("collective is no name");
  if (!is_name(span.axis())) return absl::InvalidArgumentError("axis is no name");
  if (!is_name(span.name())) return absl::InvalidArgumentError("name is no name");
  return absl::OkStatus();
}

}  // namespace

bool IsTraced(const v1::UpdateHeader& header, uint32_t k) {
  return header.has_trace_step() && header.trace_step() == k;
}

uint32_t TraceSpansMax(uint32_t num_ranks) { return std::clamp(kTraceSpansMax / num_ranks, 1u, kRankTraceSpansMax); }

absl::Status CheckSpans(std::string_view field, const v1::SpanList& list) {
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(field), ".", what));
  };
  if (list.spans_size() > static_cast<int>(kRankTraceSpansMax)) {
    return wrong(absl::StrCat("spans has ", list.spans_size(), ", at most ", kRankTraceSpansMax, " are taken"));
  }
  if (list.agreed_ns() > kNanosecondsMax) return wrong(absl::StrCat("agreed_ns is ", list.agreed_ns()));
  for (int i = 0; i < list.spans_size(); ++i) {
    if (const absl::Status status = CheckSpan(list.spans(i)); !status.ok()) {
      return wrong(absl::StrCat("spans[", i, "].", status.message()));
    }
    if (i > 0 && list.spans(i).start_ns() < list.spans(i - 1).start_ns()) {
      return wrong(absl::StrCat("spans[", i, "] begins before the one in front of it"));
    }
  }
  return absl::OkStatus();
}

v1::StepTrace MakeStepTrace(const Gang& gang, std::span<const internal::v1::Vote> votes,
                            std::span<const internal::v1::Applied> applied) {
  CHECK(votes.size() == gang.num_ranks() && applied.size() == votes.size());
  v1::StepTrace trace;
  for (uint32_t rank = 0; rank < votes.size(); ++rank) {
    v1::RankTrace& of_rank = *trace.add_ranks();
    of_rank.set_rank(rank);
    of_rank.set_host(gang.worker(rank).host);
    of_rank.set_device(gang.worker(rank).device.Text());
    v1::SpanList& spans = *of_rank.mutable_spans();
    spans = votes[rank].spans();
    spans.mutable_spans()->MergeFrom(applied[rank].spans().spans());
    spans.set_dropped(spans.dropped() + applied[rank].spans().dropped());
  }
  return trace;
}

}  // namespace stemma::server
