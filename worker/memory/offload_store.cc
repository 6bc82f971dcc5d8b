#include "worker/memory/offload_store.h"

#include <c10/util/Exception.h>
#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "worker/memory/copy_failure.h"

namespace stemma::worker {

OffloadStore::OffloadStore(int64_t headroom_bytes, HostArena& arena, CopyEngine& engine)
    : arena_(arena),
      engine_(engine),
      residency_({.host_bytes = arena.capacity_bytes() - arena.current_bytes(), .headroom_bytes = headroom_bytes}) {}

OffloadStore::~OffloadStore() {
  for (const int64_t entry : moving_) engine_.Cancel(At(entry).ticket);
  for (auto& [entry, record] : records_) {
    if (record.block != nullptr) FreeHost(record);
  }
}

void OffloadStore::Put(int64_t entry, std::vector<at::Tensor> tensors) {
  Poll();
  const auto [it, is_new] = records_.try_emplace(entry, Record{PackedTensors(std::move(tensors))});
  CHECK(is_new) << "entry " << entry << " is put twice";
  Execute(residency_.Produced(entry, it->second.tensors.bytes()));
}

void OffloadStore::Poll() {
  CheckUsable();
  const std::vector<int64_t> moving = moving_;  // what ends starts others
  for (const int64_t entry : moving) {
    const absl::StatusOr<bool> done = engine_.Done(At(entry).ticket);
    CheckCopied(entry, done.status());
    if (*done) Finish(entry);
  }
}

void OffloadStore::DrainTo(int64_t device_bytes_max) {
  Poll();
  while (stats().device_bytes > device_bytes_max) {
    const auto leaves = [this](int64_t entry) { return residency_.place(entry) == Place::kLeaving; };
    const auto oldest = std::find_if(moving_.begin(), moving_.end(), leaves);
    if (oldest == moving_.end()) return;
    const int64_t entry = *oldest;
    CheckCopied(entry, engine_.ComputeWaits(At(entry).ticket));
    Finish(entry);
  }
}

void OffloadStore::ProducingEnded() {
  Poll();
  residency_.ProducingEnded();
}

void OffloadStore::ConsumeSoon() {
  Poll();
  Execute(residency_.ConsumeSoon());
}

std::vector<at::Tensor> OffloadStore::Take(int64_t entry) {
  Poll();
  Execute(residency_.Need(entry));
  std::vector<at::Tensor> tensors = std::move(At(entry).tensors).Release();
  records_.erase(entry);
  Execute(residency_.Consumed(entry));
  return tensors;
}

OffloadStore::Record& OffloadStore::At(int64_t entry) {
  const auto it = records_.find(entry);
  CHECK(it != records_.end()) << "entry " << entry << " was never put, or is taken already";
  return it->second;
}

void OffloadStore::CheckUsable() const { TORCH_CHECK(failure_.empty(), "the store failed before: ", failure_); }

void OffloadStore::Execute(const Actions& actions) {
  for (const Action& action : actions) Execute(action);
}

void OffloadStore::Execute(const Action& action) {
  Record& record = At(action.entry);
  switch (action.kind) {
    case ActionKind::kStartCopyOut:
      return StartCopyOut(action.entry);
    case ActionKind::kCancelCopyOut:
      engine_.Cancel(record.ticket);
      return StopMoving(action.entry);
    case ActionKind::kFreeDevice:
      record.tensors.FreeDevice();
      return residency_.DeviceFreed(action.entry);
    case ActionKind::kStartCopyIn:
      return StartCopyIn(action.entry);
    case ActionKind::kFreeHost:
      FreeHost(record);
      return residency_.HostFreed(action.entry);
    case ActionKind::kWaitFor:
      CheckCopied(action.entry, engine_.ComputeWaits(record.ticket));
      return Finish(action.entry);
  }
}

void OffloadStore::StartCopyOut(int64_t entry) {
  Record& record = At(entry);
  record.block = arena_.Take(record.tensors.bytes());
  if (record.block == nullptr) return Execute(residency_.CopyOutRefused(entry));
  record.ticket = engine_.StartCopyOut(record.tensors.SpansTo(record.block));
  moving_.push_back(entry);
}

void OffloadStore::StartCopyIn(int64_t entry) {
  Record& record = At(entry);
  failure_ = "no device memory for tape entry " + std::to_string(entry);  // if the next line throws
  record.tensors.AllocateDevice();
  failure_.clear();
  record.ticket = engine_.StartCopyIn(record.tensors.SpansFrom(record.block));
  moving_.push_back(entry);
}

void OffloadStore::FreeHost(Record& record) {
  arena_.Give(record.block);
  record.block = nullptr;
}

// Its ticket has ended well.
void OffloadStore::Finish(int64_t entry) {
  StopMoving(entry);
  const bool leaves = residency_.place(entry) == Place::kLeaving;
  Execute(leaves ? residency_.CopyOutDone(entry) : residency_.CopyInDone(entry));
}

void OffloadStore::StopMoving(int64_t entry) { moving_.erase(std::find(moving_.begin(), moving_.end(), entry)); }

void OffloadStore::CheckCopied(int64_t entry, const absl::Status& status) {
  if (status.ok()) return;
  StopMoving(entry);
  failure_ = "tape entry " + std::to_string(entry) + " of " + std::to_string(At(entry).tensors.bytes()) +
             " bytes could not be copied while " + std::string(PlaceName(residency_.place(entry))) + ": " +
             status.ToString();
  ThrowCopyFailed(status, failure_);
}

}  // namespace stemma::worker
