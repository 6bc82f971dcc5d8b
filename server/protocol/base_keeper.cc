#include "server/protocol/base_keeper.h"

#include "absl/strings/str_cat.h"

namespace stemma::server {

void BaseKeeper::Choose() {
  base_ = ChooseBase(history_->state(), history_->replays());
  ready_ = base_.checkpoint.empty();
  withheld_ = false;
  if (ready_) return;
  id_ = next_id_++;
  out_->Add(ReadCheckpointAction{
      .id = id_, .name = base_.checkpoint, .manifest_sha256 = checkpoint()->manifest_sha256(), .for_recovery = true});
}

void BaseKeeper::Withhold() {
  base_ = {};
  ready_ = false;
  withheld_ = true;
  id_ = 0;  // what is still read is for nothing
}

std::string BaseKeeper::WhatIsAwaited() const {
  return withheld_ ? "no generation begins: there are no weights to begin with"
                   : absl::StrCat("checkpoint ", base_.checkpoint, " is read back");
}

std::optional<absl::Status> BaseKeeper::OnRead(const CheckpointReadEvent& event) {
  if (event.id < kFirstId) return std::nullopt;
  if (event.id != id_ || ready_) return absl::CancelledError("another base was chosen");
  ready_ = event.client_state.ok();
  return event.client_state.status();
}

}  // namespace stemma::server
