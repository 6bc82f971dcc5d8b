#include "worker/engine/abandoned_exchanges.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/engine/payload.h"

namespace stemma::worker {
namespace {

absl::Status Walk(const StoppedPass& pass, const Operation& exchange, const absl::Status& cause) {
  const int peer = pass.copy.DataRankInCopy(exchange.peer_copy);
  if (exchange.kind == OperationKind::kSend) return pass.split.GiveUp(peer, cause);
  const v1::Cluster& cluster = pass.plan.clusters(exchange.cluster);
  const uint32_t group = cluster.prefix_groups_size() > 0 ? cluster.prefix_groups(0) : kGroupIndicesMax;
  if (group >= pass.sizes.prefix_rows.size() || pass.sizes.prefix_rows[group] < 1) {
    return absl::UnavailableError(
        absl::StrCat("rank ", pass.copy.MeshRankInCopy(exchange.peer_copy),
                     " sends the prefix of a group that is not in the payload: ", std::string(cause.message())));
  }
  const int64_t rows = pass.sizes.prefix_rows[group];
  return exchange.part == PrefixPart::kKv ? pass.split.DropKv(peer, rows) : pass.split.DropGradients(peer, rows);
}

}  // namespace

absl::Status AbandonExchanges(const StoppedPass& pass, std::span<const Operation> rest, const absl::Status& cause) {
  for (const Operation& operation : rest) {
    if (absl::IsUnavailable(cause)) break;
    if (operation.part == PrefixPart::kNone) continue;
    RETURN_IF_ERROR(Walk(pass, operation, cause));
  }
  return cause;
}

}  // namespace stemma::worker
