#include "server/protocol/checkpoint_save.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "glog/logging.h"

namespace stemma::server {

bool CheckpointSave::Writes(const std::string& name) const {
  return (exists() && order_.manifest.name() == name) ||
         (late_ && late_->commits && late_->order.manifest.name() == name);
}

void CheckpointSave::Begin(Order order, uint32_t num_ranks, const JobSeconds& predicted, absl::Duration stalled_after) {
  CHECK(!exists() && !late_) << order_.job;
  phase_ = Phase::kFolder;
  order_ = std::move(order);
  ranks_.assign(num_ranks, {});
  predicted_ = predicted;
  stalled_after_ = stalled_after;
  ++id_;
  Watch(absl::StrCat("making the folder of checkpoint ", order_.manifest.name()), {});
}

void CheckpointSave::Watch(const std::string& what, const JobSeconds& predicted) {
  watch_.emplace(what, predicted, stalled_after_);
  next_look_ = passed_ + kLookEvery;
}

void CheckpointSave::FolderMade() {
  CHECK(awaits_folder()) << order_.job;
  phase_ = Phase::kRanks;
  Watch(absl::StrCat("writing checkpoint ", order_.manifest.name()), predicted_);
}

bool CheckpointSave::AwaitsStaged(uint32_t rank) const {
  return phase_ == Phase::kRanks && rank < ranks_.size() && !ranks_[rank].staged;
}

bool CheckpointSave::AwaitsDone(uint32_t rank) const {
  return phase_ == Phase::kRanks && rank < ranks_.size() && ranks_[rank].staged && !ranks_[rank].done;
}

void CheckpointSave::AddStaged(uint32_t rank, const absl::Status& failure) {
  CHECK(AwaitsStaged(rank)) << rank;
  ranks_[rank] = {.staged = true, .done = !failure.ok(), .failure = failure, .weights_digest = {}};
}

void CheckpointSave::AddDone(uint32_t rank, const internal::v1::SaveDone& done, const absl::Status& failure) {
  CHECK(AwaitsDone(rank)) << rank;
  watch_->Moved();
  ranks_[rank].done = true;
  ranks_[rank].failure = failure;
  ranks_[rank].weights_digest = done.weights_digest();
  for (internal::v1::CheckpointPart part : done.parts()) {
    part.set_rank(rank);
    *order_.manifest.add_parts() = std::move(part);
  }
}

bool CheckpointSave::all_ended() const {
  return phase_ == Phase::kRanks && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.done; });
}

absl::Status CheckpointSave::failure() const {
  for (const Rank& rank : ranks_) {
    if (!rank.failure.ok()) return rank.failure;
  }
  for (const Rank& rank : ranks_) {
    if (rank.weights_digest != ranks_.front().weights_digest) {
      return MakeError(Reason::kDiverged, absl::StrCat("the ranks hold other weights at step ", order_.manifest.step(),
                                                       ": nothing is saved of them"));
    }
  }
  return absl::OkStatus();
}

CommitCheckpointAction CheckpointSave::Commit() {
  CHECK(all_ended() && failure().ok());
  phase_ = Phase::kCommitting;
  // It is read as it was written, after a reading that is going on; both say how far they are.
  Watch(absl::StrCat("reading checkpoint ", order_.manifest.name(), " back"),
        {.longest = kCheckpointProgressBytes / kBytesPerSecond, .total = 2 * predicted_.total});
  order_.manifest.set_weights_digest(ranks_.front().weights_digest);
  return {.id = id_, .folder = order_.folder, .manifest = order_.manifest, .client_state = order_.client_state};
}

CheckpointSave::Order CheckpointSave::End() {
  phase_ = Phase::kNone;
  next_look_ = absl::InfiniteFuture();
  ranks_.clear();
  return std::exchange(order_, {});
}

bool CheckpointSave::writes() const {
  return phase_ == Phase::kRanks && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.staged; });
}

void CheckpointSave::Pass(absl::Time now, absl::Time handled_at) {
  passed_ = now;
  const absl::Duration counted = counted_.Until(now, handled_at);
  next_look_ = watched() ? std::min(next_look_, now + kLookEvery) : absl::InfiniteFuture();
  if (watched()) watch_->Pass(counted);
}

void CheckpointSave::Look(absl::Time now) {
  if (now >= next_look_) next_look_ = now + kLookEvery;
}

std::string CheckpointSave::Problem() const { return watched() ? watch_->Problem() : ""; }

CheckpointSave::Order CheckpointSave::GiveUp() {
  CHECK(exists() && !late_) << order_.job;
  if (phase_ != Phase::kRanks) {
    late_ = {.id = id_, .commits = commits(), .order = order_};
    late_->order.call = 0;  // is answered now
    return End();
  }
  GivenUp given_up = {.job = order_.job, .folder = order_.folder, .writers = {}};
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].done) given_up.writers.insert(rank);
  }
  given_up_.push_back(std::move(given_up));
  return End();
}

std::optional<CheckpointSave::Order> CheckpointSave::TakeLate(uint64_t id) {
  if (!late_ || late_->id != id) return std::nullopt;
  return std::exchange(late_, std::nullopt)->order;
}

std::optional<std::string> CheckpointSave::AddLateDone(const std::string& job, uint32_t rank) {
  const auto it = std::find_if(given_up_.begin(), given_up_.end(), [&](const GivenUp& g) { return g.job == job; });
  if (it == given_up_.end() || it->writers.erase(rank) == 0 || !it->writers.empty()) return std::nullopt;
  std::string folder = std::move(it->folder);
  given_up_.erase(it);
  return folder;
}

std::vector<std::string> CheckpointSave::TakeGivenUp() {
  std::vector<std::string> folders;
  for (GivenUp& given_up : std::exchange(given_up_, {})) folders.push_back(std::move(given_up.folder));
  return folders;
}

}  // namespace stemma::server
