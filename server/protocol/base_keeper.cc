#include "server/protocol/base_keeper.h"

namespace stemma::server {

void BaseKeeper::Choose() {
  base_ = ChooseBase(history_->state(), history_->replays());
  ready_ = base_.checkpoint.empty();
  if (ready_) return;
  id_ = next_id_++;
  out_->Add(ReadCheckpointAction{
      .id = id_, .name = base_.checkpoint, .manifest_sha256 = checkpoint()->manifest_sha256(), .for_recovery = true});
}

std::optional<absl::Status> BaseKeeper::OnRead(const CheckpointReadEvent& event) {
  if (event.id < kFirstId) return std::nullopt;
  if (event.id != id_ || ready_) return absl::CancelledError("another base was chosen");
  ready_ = event.client_state.ok();
  return event.client_state.status();
}

}  // namespace stemma::server
