#include "server/coordinator/first_weights.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "server/protocol/checkpoint_rules.h"

namespace stemma::server {
namespace {

constexpr size_t kNamedFoldersMax = 3;

// Says of the first few why each is no checkpoint.
std::string ReasonsOf(const std::vector<std::string>& reasons) {
  const size_t said = std::min(reasons.size(), kNamedFoldersMax);
  const std::string text = absl::StrJoin(reasons.begin(), reasons.begin() + static_cast<int64_t>(said), "; ");
  return said == reasons.size() ? text : absl::StrCat(text, "; and ", reasons.size() - said, " more");
}

bool IsFound(const Storage& storage, const std::string& name) {
  return std::any_of(storage.found().begin(), storage.found().end(),
                     [&](const auto& known) { return known.name() == name; });
}

absl::StatusOr<std::string> ChooseNewest(const Storage& storage) {
  if (!storage.found().empty() || storage.left_out().empty()) return FurthestOfNewestLineage(storage.found());
  return absl::FailedPreconditionError(absl::StrCat(
      "--resume auto: no folder of the new --data directory's checkpoints/ is a checkpoint that training can go on "
      "from: ",
      ReasonsOf(storage.left_out()), "; copy it here again as a whole, or begin anew from --model with --resume none"));
}

// Returns those of the journal's checkpoints that are there. The rest of its state may be large, and is not copied.
std::vector<internal::v1::KnownCheckpoint> FoundOfJournal(const Storage& storage) {
  std::vector<internal::v1::KnownCheckpoint> found;
  for (const internal::v1::KnownCheckpoint& checkpoint : storage.state().checkpoints()) {
    if (IsFound(storage, checkpoint.name())) found.push_back(checkpoint);
  }
  return found;
}

}  // namespace

absl::StatusOr<std::string> ChooseResumed(const std::string& resume, const Storage& storage) {
  const std::string& lineage = storage.state().lineage();
  const bool is_name = resume != kResumeNothing && resume != kResumeNewest;
  // A service names it at every start, also once the checkpoint has been dropped.
  if (!lineage.empty()) {
    LOG_IF(WARNING, is_name) << "--resume " << resume << " is for a new --data directory; this one's journal goes on "
                             << "with lineage " << lineage << " (stemma checkpoint load goes back)";
    return "";
  }
  if (resume == kResumeNothing) return "";
  if (resume == kResumeNewest) return ChooseNewest(storage);
  if (IsFound(storage, resume)) return resume;
  return absl::InvalidArgumentError(absl::StrCat("--resume ", resume, ": there is no such checkpoint in --data"));
}

std::string ChooseFirst(const std::string& resumed, bool replays, const Storage& storage) {
  return resumed.empty() ? ChooseBase(storage.state(), FoundOfJournal(storage), replays).checkpoint : resumed;
}

absl::Status CheckKeptRequests(bool replays, const Storage& storage) {
  if (!replays) return absl::OkStatus();
  std::vector<internal::v1::KnownCheckpoint> found = FoundOfJournal(storage);
  // What is marked damaged may have been put back since, and only a server that has started verifies it again.
  for (internal::v1::KnownCheckpoint& known : found) known.clear_damage();
  return storage.CheckKeptVersions(ChooseBase(storage.state(), found, replays).step);
}

}  // namespace stemma::server
