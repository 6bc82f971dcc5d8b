// Chooses the memory of many clusters under the same options: a shape that was seen before is not evaluated again, and
// of a group that is asked for several times (alone by reuse and dense, in its cluster, in the report, in each epoch)
// the ways are looked at once. Pure: what is remembered changes no answer.
//
// Not thread-safe; one for a plan. It remembers at most kMembersMax rollouts, about 32 bytes each, then forgets all.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "server/planner/memory_choice.h"

namespace stemma::server {

class MemoryChooser {
 public:
  static constexpr int64_t kMembersMax = int64_t{1} << 22;

  explicit MemoryChooser(MemoryOptions options) : options_(std::move(options)) {}

  const MemoryOptions& options() const { return options_; }

  // Cuts rollouts by rows where context-parallel ranks are faster so, or nothing else fits. Null: nothing fits, or
  // planning was stopped.
  std::shared_ptr<const MemoryChoice> Choose(const ClusterShape& cluster);

  // How much was looked at, for tests: speed is not tested by seconds.
  struct Counts {
    int64_t shapes = 0;
    int64_t ways = 0;   // whose bytes were computed
    int64_t waves = 0;  // whose bytes were computed
  };
  const Counts& counts() const { return counts_; }

 private:
  std::optional<MemoryChoice> FastestOf(const MemoryOptions& options, const ClusterShape& cluster);
  // Chooses with as many rounds in flight as fit.
  std::optional<MemoryChoice> FastestOfRounds(const ClusterShape& cluster);

  const MemoryOptions options_;
  absl::flat_hash_map<ClusterShape, std::shared_ptr<const MemoryChoice>> known_;
  int64_t members_ = 0;  // of known_
  Counts counts_;
};

}  // namespace stemma::server
