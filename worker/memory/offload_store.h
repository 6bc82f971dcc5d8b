// OffloadStore: keeps a dormant set of tensors, such as the tape of the prefixes, mostly in host memory. Residency
// decides (worker/memory/residency/residency.h); this executes, with a host arena and a copy engine.
//
// Engine thread only. One store per dormant set: Put entries, Poll between layers, ProducingEnded, ConsumeSoon, Take
// them. Arena and copy engine outlive it.
// Invariants: device memory of an entry is dropped only after its copy has ended, or where what the engine thread
// computes next comes after it; Take returns the bits that were Put. Where other owners hold the same storage, their
// share of the device memory stays of course. Errors: a copy that fails throws c10::Error, naming the entry; so does
// every later call. The store can then only be destroyed, which is safe at any time: copies in flight are cancelled
// first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "worker/memory/copy_engine.h"
#include "worker/memory/host_arena.h"
#include "worker/memory/packed_tensors.h"
#include "worker/memory/residency/residency.h"

namespace stemma::worker {

class OffloadStore {
 public:
  // headroom_bytes: of the device, that prefetched entries may take; 0: every load is on demand.
  OffloadStore(int64_t headroom_bytes, HostArena& arena, CopyEngine& engine);
  ~OffloadStore();
  OffloadStore(const OffloadStore&) = delete;
  OffloadStore& operator=(const OffloadStore&) = delete;

  // Takes ownership; undefined tensors stay undefined. Nothing may write to the tensors' memory from now on.
  void Put(int64_t entry, std::vector<at::Tensor> tensors);
  // Ends what has been copied, starts what may start.
  void Poll();
  // Lets the computation wait until the entries take no more than device_bytes_max on the device, or none is leaving
  // any more. Makes the device memory of a phase independent of the speed of the copies.
  void DrainTo(int64_t device_bytes_max);
  void ProducingEnded();
  // The last wave begins; after ProducingEnded.
  void ConsumeSoon();
  // Lets the computation wait if it must; the entry is gone afterwards. Best in the reverse order of Put, any order
  // works.
  std::vector<at::Tensor> Take(int64_t entry);

  const ResidencyStats& stats() const { return residency_.stats(); }

 private:
  struct Record {
    PackedTensors tensors;
    void* block = nullptr;
    CopyTicket ticket = 0;  // while it stands in moving_
  };

  Record& At(int64_t entry);
  void CheckUsable() const;
  void Execute(const Actions& actions);
  void Execute(const Action& action);
  void StartCopyOut(int64_t entry);
  void StartCopyIn(int64_t entry);
  void FreeHost(Record& record);
  void Finish(int64_t entry);
  void StopMoving(int64_t entry);
  void CheckCopied(int64_t entry, const absl::Status& status);

  HostArena& arena_;
  CopyEngine& engine_;
  Residency residency_;
  std::unordered_map<int64_t, Record> records_;
  std::vector<int64_t> moving_;  // with a ticket, oldest first
  std::string failure_;
};

}  // namespace stemma::worker
