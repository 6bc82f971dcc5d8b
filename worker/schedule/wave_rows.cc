#include "worker/schedule/wave_rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace stemma::worker {

absl::StatusOr<std::vector<MemberRows>> WaveRows(const std::vector<GroupShape>& groups, const v1::Cluster& cluster,
                                                 const v1::Wave& wave) {
  std::vector<MemberRows> rows;
  int64_t next_row = 0, next_head_row = 0;
  for (const v1::WaveMember& member : wave.members()) {
    if (member.group() >= groups.size() || member.rollout() >= groups[member.group()].response_tokens.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan names group ", member.group(), " rollout ", member.rollout(), ": not in the payload"));
    }
    const GroupShape& group = groups[member.group()];
    const int64_t prefix_rows = group.prompt_tokens - 1;
    const int64_t suffix_rows = group.response_tokens[member.rollout()];
    const auto& prefixes = cluster.prefix_groups();
    const auto found = std::find(prefixes.begin(), prefixes.end(), member.group());
    const bool reuse = found != prefixes.end();
    if (suffix_rows == 0 || (reuse && prefix_rows == 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan runs group ", member.group(), " rollout ", member.rollout(), ", which has no rows"));
    }
    MemberRows m;
    m.group = member.group();
    m.rollout = member.rollout();
    m.begin = next_row;
    m.end = next_row + suffix_rows + (reuse ? 0 : prefix_rows);
    m.prefix = reuse ? found - prefixes.begin() : -1;
    m.kv_only_rows = reuse ? 0 : prefix_rows;
    m.first_position = reuse ? prefix_rows : 0;
    m.head_begin = next_head_row;
    next_row = m.end;
    next_head_row += suffix_rows;
    rows.push_back(m);
  }
  return rows;
}

}  // namespace stemma::worker
