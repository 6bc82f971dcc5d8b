#include "worker/schedule/wave_rows.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/cost/context_rows.h"

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

absl::Status CheckCutRows(const std::vector<MemberRows>& members, int64_t ranks) {
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("the plan cuts the rows of ", why));
  };
  if (members.size() != 1) return refuse(absl::StrCat("a wave of ", members.size(), " members: it has one"));
  const MemberRows& m = members[0];
  const std::string name = absl::StrCat("group ", m.group, " rollout ", m.rollout);
  if (m.kv_only_rows > 0) return refuse(absl::StrCat(name, ", whose trajectory has a prefix of its own"));
  const int64_t rows = m.end - m.begin, fewest = FewestCutRows(ranks);
  if (rows >= fewest) return absl::OkStatus();
  return refuse(absl::StrCat(name, ", which has ", rows, ": of ", fewest, " at least"));
}

std::vector<MemberRows> RowsOfRank(const v1::Wave& wave, const std::vector<MemberRows>& members, int64_t rank,
                                   int64_t ranks) {
  if (!wave.cut_rows()) return members;
  const MemberRows& member = members.front();
  std::vector<MemberRows> rows;
  int64_t next_row = 0;
  for (const ContextPiece& piece : DealCutRows(member.end - member.begin, ranks)) {
    if (piece.rank != rank) continue;
    MemberRows& m = rows.emplace_back(member);
    m.begin = m.head_begin = next_row;
    m.end = next_row += piece.rows();
    m.first_position += piece.begin;
    m.suffix_begin = piece.begin;
  }
  return rows;
}

}  // namespace stemma::worker
