// Where the bytes that a rank writes come from: the states themselves, or a copy of them in host memory, so that the
// engine goes on while the copy is written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "worker/checkpoint/checkpoint_layout.h"
#include "worker/memory/host_arena.h"
#include "worker/model/weights.h"

namespace stemma::worker {

using ByteSink = std::function<absl::Status(std::string_view bytes)>;
// Hands the bytes of a piece to the sink, in their order; its first error ends it.
using PieceReader = std::function<absl::Status(StateKind kind, const StatePiece& piece, const ByteSink& sink)>;

// Reads the weights themselves, on the engine thread, while they do not change. `weights` outlives it.
PieceReader DirectReader(const Weights& weights);

// A copy of all pieces of some shares. Apart from the device's memory, and not counted there.
//
// Thread safety: made on the engine thread, then read and destroyed by one other thread.
class StagedStates {
 public:
  // Returns null where the host has no room: `available_bytes`, or what the kernel gives, is too little.
  static std::unique_ptr<StagedStates> Copy(const Weights& weights, const std::vector<FileShare>& shares,
                                            int64_t available_bytes);
  ~StagedStates();
  StagedStates(const StagedStates&) = delete;
  StagedStates& operator=(const StagedStates&) = delete;

  int64_t bytes() const { return bytes_; }
  // REQUIRES: this outlives it; pieces of the shares that were copied.
  PieceReader Reader() const;

 private:
  StagedStates(std::unique_ptr<HostArena> arena, char* block, int64_t bytes)
      : arena_(std::move(arena)), block_(block), bytes_(bytes) {}

  const std::unique_ptr<HostArena> arena_;
  char* const block_;
  const int64_t bytes_;
};

}  // namespace stemma::worker
