// What the products of waves compute and read beyond their rows' own: tiles of rows that are not full, and weights that
// are passed over again. Pure; the cost model's, and of the cuts into waves, which keep it beside them.
//
// Where the device's row quantum is 1, waves are two numbers and nothing else, so that seconds are linear in rows.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "common/cost/byte_shape.h"
#include "common/cost/context_rows.h"

namespace stemma::server {

// A rollout in Phase B.
struct MemberShape {
  int64_t rows = 0;         // R
  int64_t prefix_rows = 0;  // P - 1
  bool dense = false;       // computes its prefix itself
  int32_t cut_ranks = 1;    // that share its rows, and run its wave together; 1: one rank computes it
  int64_t prefix = 0;       // unless it is dense, its index into ClusterShape::prefix_rows

  bool is_cut() const { return cut_ranks > 1; }
  // Returns how many of its rows one rank has, of several ranks the one that has most.
  int64_t own_rows() const { return is_cut() ? LargestCutPart(rows, cut_ranks) : rows; }

  bool operator==(const MemberShape&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const MemberShape& m) {
    return H::combine(std::move(h), m.rows, m.prefix_rows);  // few differ in the rest alone
  }
};

// Waves of one rank as its products see them, added up.
struct WavePasses {
  WavePasses() = default;
  // So many waves that attend to a prefix, each with one chunk of the head's and no rows to round up.
  WavePasses(int64_t number)  // NOLINT(google-explicit-constructor)
      : waves(number), prefix_waves(number), head_chunks(number) {}

  int64_t waves = 0;
  int64_t prefix_waves = 0;      // of them, those that attend to a prefix
  int64_t head_chunks = 0;       // of rows that the head takes at a time
  int64_t kv_only_products = 0;  // waves whose rows for K and V alone are products of their own in the last layer
  // Rows by which products are rounded up: of all rows of a wave, of those that are in the model's last layer, of those
  // that have K and V alone there, and of the head's chunks.
  int64_t layer_padding = 0, last_padding = 0, kv_only_padding = 0, head_padding = 0;

  bool operator==(const WavePasses&) const = default;
};

// Returns by how many rows so many are rounded up that products take in blocks; 0: at once.
int64_t RowPadding(const ByteShape& shape, int64_t rows, int64_t block_rows = 0);

// Returns how many of the head's chunks of one response run forward twice (ByteShape::whole_rollouts); all are full.
int64_t HeadChunksAgain(const ByteShape& shape, const MemberShape& member);

// Adds a wave of these members.
void AddWave(const ByteShape& shape, std::span<const MemberShape> members, WavePasses& passes);
// Returns no more of anything than so many waves of these members have, whichever they are, or more waves.
WavePasses LeastPasses(const ByteShape& shape, std::span<const MemberShape> members, int64_t waves);

}  // namespace stemma::server
