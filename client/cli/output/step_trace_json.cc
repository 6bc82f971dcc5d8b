#include "client/cli/output/step_trace_json.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/output/records.h"

namespace stemma::cli {
namespace {

using v1::RankTrace;
using v1::StepSpan;

enum class Lane { kStep, kCompute, kWaits, kCollectives, kCopies };

// Thread ids: those of one lane follow each other, for what overlaps in it.
constexpr int64_t kLaneIds = 1000;
constexpr const char* kLaneNames[] = {"step", "compute", "waits", "collectives", "copies"};

struct KindLook {
  Lane lane;
  const char* category;
  const char* name;
};

KindLook LookOf(StepSpan::Kind kind) {
  switch (kind) {
    case StepSpan::PREPARE:
      return {Lane::kStep, "step", "PREPARE"};
    case StepSpan::APPLY:
      return {Lane::kStep, "step", "APPLY"};
    case StepSpan::PREFIX_FORWARD:
      return {Lane::kCompute, "phase", "A: prefix forward"};
    case StepSpan::WAVE_FORWARD:
      return {Lane::kCompute, "phase", "B: wave forward"};
    case StepSpan::WAVE_BACKWARD:
      return {Lane::kCompute, "phase", "B: wave backward"};
    case StepSpan::PREFIX_BACKWARD:
      return {Lane::kCompute, "phase", "C: prefix backward"};
    case StepSpan::JOIN_FORWARD:
      return {Lane::kCompute, "exchange", "join wave forward"};
    case StepSpan::JOIN_BACKWARD:
      return {Lane::kCompute, "exchange", "join wave backward"};
    case StepSpan::SEND_KV:
      return {Lane::kCompute, "exchange", "send K/V"};
    case StepSpan::RECEIVE_KV:
      return {Lane::kCompute, "exchange", "receive K/V"};
    case StepSpan::SEND_GRADIENTS:
      return {Lane::kCompute, "exchange", "send gK/gV"};
    case StepSpan::RECEIVE_GRADIENTS:
      return {Lane::kCompute, "exchange", "receive gK/gV"};
    case StepSpan::ZERO_GRADIENTS:
      return {Lane::kCompute, "gradients", "zero gradients"};
    case StepSpan::REDUCE:
      return {Lane::kCompute, "gradients", "reduce gradients"};
    case StepSpan::AGREE:
      return {Lane::kCompute, "gradients", "agree"};
    case StepSpan::GRADIENT_NORM:
      return {Lane::kCompute, "gradients", "gradient norm"};
    case StepSpan::ADAMW:
      return {Lane::kCompute, "apply", "AdamW"};
    case StepSpan::GATHER:
      return {Lane::kCompute, "apply", "gather weights"};
    case StepSpan::COLLECTIVE:
      return {Lane::kCollectives, "collective", "collective"};
    case StepSpan::COPY_OUT:
      return {Lane::kCopies, "copy", "copy out"};
    case StepSpan::COPY_IN:
      return {Lane::kCopies, "copy", "copy in"};
    case StepSpan::COPY_WAIT:
      return {Lane::kWaits, "wait", "wait for a copy"};
    default:
      return {Lane::kStep, "unknown", "of a kind that this program does not know"};
  }
}

bool HasCluster(StepSpan::Kind kind) { return kind >= StepSpan::PREFIX_FORWARD && kind <= StepSpan::RECEIVE_GRADIENTS; }

bool HasWave(StepSpan::Kind kind) { return kind == StepSpan::WAVE_FORWARD || kind == StepSpan::WAVE_BACKWARD; }

double Microseconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

// How far each rank is moved, by rank.
std::vector<uint64_t> Shifts(const v1::StepTrace& trace) {
  uint64_t last = 0;
  for (const RankTrace& rank : trace.ranks()) last = std::max<uint64_t>(last, rank.spans().agreed_ns());
  std::vector<uint64_t> shifts;
  for (const RankTrace& rank : trace.ranks()) {
    shifts.push_back(rank.spans().agreed_ns() == 0 ? 0 : last - rank.spans().agreed_ns());
  }
  return shifts;
}

// The shortest stay of a rank in the agreement; nullopt: no rank recorded one.
std::optional<uint64_t> ClockError(const v1::StepTrace& trace) {
  std::optional<uint64_t> shortest;
  for (const RankTrace& rank : trace.ranks()) {
    for (const StepSpan& span : rank.spans().spans()) {
      if (span.kind() != StepSpan::AGREE) continue;
      shortest = std::min(shortest.value_or(span.duration_ns()), span.duration_ns());
    }
  }
  return shortest;
}

// How many ranks have recorded a collective of an axis: all of those that it has. The axis without a name is all
// ranks'.
std::map<std::string, uint32_t> RanksOfAxes(const v1::StepTrace& trace) {
  std::map<std::string, uint32_t> ranks;
  for (const RankTrace& rank : trace.ranks()) {
    std::set<std::string> axes;
    for (const StepSpan& span : rank.spans().spans()) {
      if (span.kind() == StepSpan::COLLECTIVE) axes.insert(span.axis());
    }
    for (const std::string& axis : axes) ++ranks[axis];
  }
  ranks[""] = static_cast<uint32_t>(trace.ranks_size());
  return ranks;
}

// When the last of its ranks came to each collective, and which one that was.
class Arrivals {
 public:
  struct Last {
    uint64_t at_ns = 0;
    uint32_t rank = 0;
  };

  Arrivals(const v1::StepTrace& trace, const std::vector<uint64_t>& shifts) {
    const auto num_ranks = static_cast<uint32_t>(trace.ranks_size());
    const std::map<std::string, uint32_t> ranks_of_axis = RanksOfAxes(trace);
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      if (trace.ranks(static_cast<int>(rank)).spans().dropped() > 0) complete_ = false;
      std::map<Key, uint32_t> counts;
      for (const StepSpan& span : trace.ranks(static_cast<int>(rank)).spans().spans()) {
        if (span.kind() != StepSpan::COLLECTIVE) continue;
        const Key key = KeyOf(rank, span);
        Met& met = met_[{key, counts[key]++}];
        const uint64_t at_ns = span.start_ns() + shifts[rank];
        if (met.ranks++ == 0 || at_ns > met.last.at_ns) met.last = {at_ns, rank};
        met.expected = IsPair(span) ? 2 : ranks_of_axis.at(span.axis());
      }
    }
  }

  // Nullopt where not all ranks of the collective recorded it. Asked once for each one of a rank, in their order.
  std::optional<Last> LastOf(uint32_t rank, const StepSpan& span) {
    const Key key = KeyOf(rank, span);
    const auto found = met_.find({key, asked_[{rank, key}]++});
    if (!complete_ || found == met_.end() || found->second.ranks != found->second.expected) return std::nullopt;
    return found->second.last;
  }

 private:
  // Names those that meet: axis, kind and name; for a send and its receive the sender, the receiver and the name.
  using Key = std::tuple<std::string, std::string, int64_t, int64_t>;
  struct Met {
    uint32_t ranks = 0, expected = 0;
    Last last;
  };

  static bool IsPair(const StepSpan& span) { return span.collective() == "send" || span.collective() == "receive"; }

  static Key KeyOf(uint32_t rank, const StepSpan& span) {
    if (!IsPair(span)) return {absl::StrCat(span.axis(), " ", span.collective()), span.name(), -1, -1};
    const bool sends = span.collective() == "send";
    return {"pair", span.name(), sends ? rank : span.peer(), sends ? span.peer() : rank};
  }

  bool complete_ = true;
  std::map<std::pair<Key, uint32_t>, Met> met_;
  std::map<std::pair<uint32_t, Key>, uint32_t> asked_;
};

// The events of one rank.
class RankEvents {
 public:
  RankEvents(const RankTrace& rank, uint64_t shift_ns, Arrivals& arrivals, std::vector<Record>& events)
      : rank_(rank), shift_ns_(shift_ns), arrivals_(arrivals), events_(events) {}

  void Add() {
    Metadata("process_name", 0,
             {{"name", absl::StrCat("rank ", rank_.rank(), " (", rank_.host(), ", ", rank_.device(), ")")}});
    Metadata("process_sort_index", 0, {{"sort_index", rank_.rank()}});
    const size_t lanes_at = events_.size();
    for (const StepSpan& span : rank_.spans().spans()) AddSpan(span);
    std::vector<Record> spans(events_.begin() + static_cast<std::ptrdiff_t>(lanes_at), events_.end());
    events_.resize(lanes_at);
    for (const int64_t id : ids_) NameLane(id);
    events_.insert(events_.end(), spans.begin(), spans.end());
  }

 private:
  void Metadata(const char* name, int64_t id, const Record& args) {
    events_.push_back({{"ph", "M"}, {"name", name}, {"pid", rank_.rank()}, {"tid", id}, {"args", args}});
  }

  void NameLane(int64_t id) {
    const int64_t lane = id / kLaneIds, number = id % kLaneIds;
    std::string name = kLaneNames[lane];
    if (number > 1) absl::StrAppend(&name, " ", number);
    Metadata("thread_name", id, {{"name", name}});
    Metadata("thread_sort_index", id, {{"sort_index", id}});
  }

  // The thread of a lane in which nothing runs at that time any more.
  int64_t FreeId(Lane lane, uint64_t begin_ns, uint64_t end_ns) {
    std::vector<uint64_t>& ends = ends_[lane];
    size_t number = 0;
    const bool overlaps = lane == Lane::kCollectives || lane == Lane::kCopies;
    while (overlaps && number < ends.size() && ends[number] > begin_ns) ++number;
    if (number == ends.size()) ends.push_back(0);
    ends[number] = end_ns;
    const int64_t id = static_cast<int64_t>(lane) * kLaneIds + static_cast<int64_t>(number) + 1;
    ids_.insert(id);
    return id;
  }

  void Event(Lane lane, const char* category, const std::string& name, uint64_t begin_ns, uint64_t end_ns,
             Record args) {
    Record event{{"ph", "X"},
                 {"name", name},
                 {"cat", category},
                 {"pid", rank_.rank()},
                 {"tid", FreeId(lane, begin_ns, end_ns)},
                 {"ts", Microseconds(begin_ns)},
                 {"dur", Microseconds(end_ns - begin_ns)}};
    if (!args.empty()) event["args"] = std::move(args);
    events_.push_back(std::move(event));
  }

  void AddSpan(const StepSpan& span) {
    const uint64_t begin_ns = span.start_ns() + shift_ns_, end_ns = begin_ns + span.duration_ns();
    if (span.kind() == StepSpan::COLLECTIVE) return AddCollective(span, begin_ns, end_ns);
    const KindLook look = LookOf(span.kind());
    Record args = Record::object();
    if (HasCluster(span.kind())) args["cluster"] = span.cluster();
    if (HasWave(span.kind())) args["wave"] = span.wave();
    if (span.has_peer()) args["peer"] = span.peer();
    if (span.bytes() > 0) args["bytes"] = span.bytes();
    if (span.held_ns() > 0) args["reduction_us"] = Microseconds(span.held_ns());
    Event(look.lane, span.entry() ? "entry" : look.category,
          span.entry() ? absl::StrCat("entry log-probs, ", look.name) : look.name, begin_ns, end_ns, std::move(args));
  }

  void AddCollective(const StepSpan& span, uint64_t begin_ns, uint64_t end_ns) {
    Record args{{"bytes", span.bytes()}};
    if (span.has_peer()) args["peer"] = span.peer();
    const std::optional<Arrivals::Last> last = arrivals_.LastOf(rank_.rank(), span);
    const uint64_t came_ns = last ? std::clamp(last->at_ns, begin_ns, end_ns) : begin_ns;
    if (last) {
      args["last_rank"] = last->rank;
      args["waiting_us"] = Microseconds(came_ns - begin_ns);
      args["moving_us"] = Microseconds(end_ns - came_ns);
    }
    Event(Lane::kCollectives, "collective", absl::StrCat(span.collective(), " ", span.name()), begin_ns, end_ns, args);
    // What held the engine: the rank that came last, then the bytes.
    const uint64_t held_from_ns = end_ns - std::min(span.held_ns(), end_ns);
    const uint64_t moved_from_ns = std::max(held_from_ns, came_ns);
    if (moved_from_ns > held_from_ns) {
      Event(Lane::kWaits, "wait", absl::StrCat("wait for rank ", last->rank), held_from_ns, moved_from_ns,
            {{"collective", span.name()}});
    }
    if (end_ns > moved_from_ns) {
      Event(Lane::kWaits, "transfer", absl::StrCat(last ? "transfer " : "collective ", span.name()), moved_from_ns,
            end_ns, {{"bytes", span.bytes()}});
    }
  }

  const RankTrace& rank_;
  const uint64_t shift_ns_;
  Arrivals& arrivals_;
  std::vector<Record>& events_;
  std::map<Lane, std::vector<uint64_t>> ends_;  // of the threads of a lane
  std::set<int64_t> ids_;                       // of the threads that have events
};

}  // namespace

std::string StepTraceJson(const v1::StepTrace& trace, const StepTraceLabels& labels) {
  const std::vector<uint64_t> shifts = Shifts(trace);
  Arrivals arrivals(trace, shifts);
  std::vector<Record> events;
  Record dropped = Record::array();
  for (int i = 0; i < trace.ranks_size(); ++i) {
    RankEvents(trace.ranks(i), shifts[static_cast<size_t>(i)], arrivals, events).Add();
    dropped.push_back(trace.ranks(i).spans().dropped());
  }
  Record other{{"program", labels.program},
               {"request_id", labels.request_id},
               {"step", labels.step},
               {"ranks", trace.ranks_size()},
               {"spans_dropped", dropped}};
  if (const std::optional<uint64_t> error = ClockError(trace)) other["clock_error_us"] = Microseconds(*error);
  std::string text =
      absl::StrCat("{\"displayTimeUnit\": \"ms\",\n \"otherData\": ", JsonText(other), ",\n \"traceEvents\": [");
  const char* separator = "\n";
  for (const Record& event : events) {
    absl::StrAppend(&text, separator, JsonText(event));
    separator = ",\n";
  }
  return absl::StrCat(text, "\n]}\n");
}

}  // namespace stemma::cli
