#include "server/protocol/checkpoint_save.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "glog/logging.h"

namespace stemma::server {

void CheckpointSave::Begin(Order order, uint32_t num_ranks, JobWatch watch) {
  CHECK(!exists()) << order_.job;
  phase_ = Phase::kRanks;
  order_ = std::move(order);
  ranks_.assign(num_ranks, {});
  watch_ = std::move(watch);
  ++id_;
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
  order_.manifest.set_weights_digest(ranks_.front().weights_digest);
  return {.id = id_, .folder = order_.folder, .manifest = order_.manifest, .client_state = order_.client_state};
}

CheckpointSave::Order CheckpointSave::End() {
  phase_ = Phase::kNone;
  ranks_.clear();
  return std::exchange(order_, {});
}

bool CheckpointSave::writes() const {
  return phase_ == Phase::kRanks && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.staged; });
}

void CheckpointSave::Pass(absl::Duration counted) {
  if (writes()) watch_->Pass(counted);
}

std::string CheckpointSave::Problem() const { return writes() ? watch_->Problem() : ""; }

CheckpointSave::Order CheckpointSave::GiveUp() {
  GivenUp given_up = {.job = order_.job, .folder = order_.folder, .writers = {}};
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].done) given_up.writers.insert(rank);
  }
  given_up_.push_back(std::move(given_up));
  return End();
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
