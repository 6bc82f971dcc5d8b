#include "server/planner/wave_packing.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace stemma::server {
namespace {

using Groups = std::span<const PackingGroup>;

void AddGroup(const PackingGroup& group, bool reuse, ClusterShape& cluster) {
  const bool shares = reuse && group.prefix_rows > 0;
  cluster.borrowed = group.borrowed;
  cluster.split = group.split;
  if (shares) cluster.prefix_rows.push_back(group.prefix_rows);
  const int64_t prefix = shares ? static_cast<int64_t>(cluster.prefix_rows.size()) - 1 : 0;
  for (const PackingMember& member : group.members) {
    cluster.members.push_back(
        {.rows = member.rows, .prefix_rows = group.prefix_rows, .dense = !shares, .prefix = prefix});
  }
}

ClusterShape ShapeOf(Groups groups) {
  ClusterShape cluster;
  size_t members = 0;
  for (const PackingGroup& group : groups) members += group.members.size();
  cluster.members.reserve(members);
  for (const PackingGroup& group : groups) AddGroup(group, group.reuse, cluster);
  return cluster;
}

struct Cut {
  std::vector<PackedCluster> clusters;
  double seconds = 0;
};

// Seconds by which clusters are compared. Where no room is left to as many rounds in flight as there are pipeline
// stages, some stages wait in Phase B.
double ComparedSeconds(const MemoryOptions& options, const MemoryChoice& choice) {
  const double waiting =
      static_cast<double>(options.rounds_in_flight) / static_cast<double>(choice.rounds_in_flight) - 1;
  return choice.seconds.total() + waiting * choice.seconds.suffix;
}

// What of the run configuration takes ways away.
std::vector<std::string> ForcedFields(const MemoryOptions& options) {
  std::vector<std::string> fields;
  const auto add = [&](const char* field, const std::string& value) {
    fields.push_back(absl::StrCat(field, " ", value));
  };
  const auto policy = [](v1::TapePolicy p) { return absl::AsciiStrToLower(v1::TapePolicy_Name(p)); };
  if (options.wave_suffixes > 1 && options.layout != v1::ONE_BY_ONE) {
    add("wave_suffixes", absl::StrCat(options.wave_suffixes));
  }
  if (options.prefix_block_rows > 0) add("prefix_block_rows", absl::StrCat(options.prefix_block_rows));
  const bool shared = options.shape.cp > 1;
  if (shared && options.prefix_kv == v1::PREFIX_KV_HOLD) add("prefix_kv", "hold");
  if (shared && options.prefix_kv == v1::PREFIX_KV_REGATHER) add("prefix_kv", "regather");
  if (options.forward_only) return fields;
  if (options.sums_gradients) add("reduce_gradients", "step");
  if (options.prefix_policy != v1::TAPE_POLICY_UNSPECIFIED) add("prefix_policy", policy(options.prefix_policy));
  if (options.suffix_policy != v1::TAPE_POLICY_UNSPECIFIED) add("suffix_policy", policy(options.suffix_policy));
  if (options.offload == v1::OFFLOAD_ON) add("offload", "on");
  if (options.offload == v1::OFFLOAD_OFF) add("offload", "off");
  return fields;
}

// Makes the error of a group that fits no way: GROUP_TOO_LARGE, see MakePlan.
absl::Status GroupTooLarge(const MemoryOptions& options, const PackingGroup& group, const MemoryAnswer& answer) {
  const std::vector<std::string> forced = ForcedFields(options);
  const bool host = answer.host_bytes_needed > 0;
  const int64_t needed = host ? answer.host_bytes_needed : answer.bytes_needed;
  const int64_t left = host ? options.host_bytes : options.budget_bytes;
  const char* field = host ? "host_memory_bytes" : "memory_budget_bytes";
  const int64_t missing = needed - left + (host ? 0 : options.overdrawn_bytes);
  std::string text = absl::StrCat("group ", group.uid, " needs ", needed, " bytes",
                                  host ? " of host memory for its tape, beside what optimizer states take there"
                                       : " above the model's weights, gradients and optimizer states",
                                  options.forward_only ? " in a log-prob pass" : "", ", and ", field, " leaves ", left);
  if (!host && options.kept_free_bytes > 0) {
    absl::StrAppend(&text, " beside ", options.kept_free_bytes,
                    " that a checkpoint's weights, sums of gradients, another run's gradients, gathered parameters or "
                    "stages in flight take");
  }
  if (!forced.empty()) {
    absl::StrAppend(&text, "; the run configuration forces ", absl::StrJoin(forced, ", "), ": lower or unset it, or");
  } else {
    absl::StrAppend(&text, ": shorten it, or");
  }
  absl::StrAppend(&text, " raise ", field, " by ", missing);
  return MakeError(Reason::kGroupTooLarge, text, {.uid = group.uid, .field = "groups"});
}

class Cutter {
 public:
  explicit Cutter(MemoryChooser& chooser) : chooser_(chooser), options_(chooser.options()) {}

  absl::StatusOr<Cut> Solve(Groups groups) const {
    RETURN_IF_ERROR(CheckGoesOn());
    const std::shared_ptr<const MemoryChoice> together = chooser_.Choose(ShapeOf(groups));
    RETURN_IF_ERROR(CheckGoesOn());  // whether it fits was not found out, else
    if (groups.size() == 1 && together == nullptr) {
      return GroupTooLarge(options_, groups[0], ChooseMemory(options_, ShapeOf(groups)));
    }
    if (groups.size() == 1 || (together != nullptr && together->cheapest)) return Of(groups, *together);
    absl::StatusOr<Cut> apart = SolveHalves(groups);
    if (together != nullptr && (!apart.ok() || ComparedSeconds(options_, *together) <= apart->seconds))
      return Of(groups, *together);
    return apart;
  }

 private:
  absl::Status CheckGoesOn() const {
    return options_.stopped() ? absl::CancelledError("planning was stopped") : absl::OkStatus();
  }

  absl::StatusOr<Cut> SolveHalves(Groups groups) const {
    ASSIGN_OR_RETURN(Cut left, Solve(groups.first(groups.size() / 2)));
    ASSIGN_OR_RETURN(Cut right, Solve(groups.subspan(groups.size() / 2)));
    left.clusters.insert(left.clusters.end(), std::make_move_iterator(right.clusters.begin()),
                         std::make_move_iterator(right.clusters.end()));
    left.seconds += right.seconds;
    return left;
  }

  Cut Of(Groups groups, const MemoryChoice& choice) const {
    PackedCluster packed;
    v1::Cluster& cluster = packed.cluster;
    std::vector<Member> members;
    for (const PackingGroup& group : groups) {
      if (group.reuse && group.prefix_rows > 0) cluster.add_prefix_groups(group.group);
      for (const PackingMember& member : group.members) members.push_back({group.group, member.rollout});
    }
    AddWaves(members, choice, cluster);
    SetWay(choice, cluster);
    packed.memory = choice;
    Cut cut;
    cut.seconds = ComparedSeconds(options_, choice);
    cut.clusters.push_back(std::move(packed));
    return cut;
  }

  struct Member {
    uint32_t group, rollout;
  };

  void AddWaves(const std::vector<Member>& members, const MemoryChoice& choice, v1::Cluster& cluster) const {
    size_t next = 0;
    for (size_t i = 0; i < choice.wave_sizes.size(); ++i) {
      v1::Wave& wave = *cluster.add_waves();
      wave.set_layout(options_.layout);
      if (!choice.wave_ranks.empty()) wave.set_cp_rank(choice.wave_ranks[i]);
      if (i < choice.cut_waves) {
        wave.set_cut_rows(true);
        wave.set_layout(v1::ONE_BY_ONE);
      }
      wave.mutable_members()->Reserve(static_cast<int>(choice.wave_sizes[i]));
      for (uint32_t count = 0; count < choice.wave_sizes[i]; ++count, ++next) {
        const Member& member = members[choice.member_order.empty() ? next : choice.member_order[next]];
        v1::WaveMember& added = *wave.add_members();
        added.set_group(member.group);
        added.set_rollout(member.rollout);
      }
    }
  }

  // A forward-only pass has blocks and no policies.
  void SetWay(const MemoryChoice& choice, v1::Cluster& cluster) const {
    const MemoryAlternative& way = choice.way;
    cluster.set_prefix_block_rows(static_cast<uint32_t>(way.prefix.block_rows));
    cluster.set_regather_prefix(way.prefix.regather);
    if (options_.forward_only) return;
    cluster.set_suffix_policy(way.suffix_policy);
    if (way.prefix.rows == 0) return;
    cluster.set_prefix_policy(way.prefix.policy);
    cluster.set_offload_prefix(way.prefix.offload);
    // What the budget leaves hides copies: tape still leaving when Phase B begins, or back before it ends.
    cluster.set_offload_headroom_bytes(static_cast<uint64_t>(choice.headroom_bytes));
  }

  MemoryChooser& chooser_;
  const MemoryOptions& options_;
};

}  // namespace

ClusterShape GroupShape(const PackingGroup& group, bool reuse) {
  ClusterShape cluster;
  AddGroup(group, reuse, cluster);
  return cluster;
}

absl::StatusOr<std::vector<PackedCluster>> PackClusters(MemoryChooser& chooser,
                                                        const std::vector<PackingGroup>& groups) {
  const Cutter cutter(chooser);
  std::vector<PackedCluster> clusters;
  for (size_t begin = 0; begin < groups.size();) {
    int64_t rows = 0;
    size_t end = begin;
    while (end < groups.size()) {
      rows += groups[end].reuse ? groups[end].prefix_rows : 0;
      if (end > begin && rows > chooser.options().cluster_prefix_rows) break;
      ++end;
    }
    ASSIGN_OR_RETURN(Cut cut, cutter.Solve(Groups(groups).subspan(begin, end - begin)));
    clusters.insert(clusters.end(), std::make_move_iterator(cut.clusters.begin()),
                    std::make_move_iterator(cut.clusters.end()));
    begin = end;
  }
  return clusters;
}

}  // namespace stemma::server
