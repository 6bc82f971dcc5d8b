// The bytes of K/V rows, and of their exchanges, where context-parallel ranks share rows: those of a cluster's prefixes
// and those of a rollout that is cut. Internal to common/cost.
#pragma once

#include <cstdint>

#include "common/cost/byte_shape.h"

namespace stemma {

inline constexpr int64_t kGatherIndexBytes = 2 * 8;  // of a shared row: its place in what ranks exchange, both ways
inline constexpr int64_t kOwnIndexBytes = 8;         // of an own row: its place among all

// K/V and gK/gV of rows in one layer.
struct KvRows {
  explicit KvRows(const ByteShape& shape)
      : kv(shape.run_bytes * 2 * shape.config.kv_size()),
        gradient(shape.accumulate_bytes * 2 * shape.config.kv_size()) {}
  int64_t kv, gradient;  // of a row
};

// Counts the buffers of a gathering, and of its transport: every rank's part, as long as the largest.
inline int64_t GatherBytes(const ByteShape& shape, int64_t part) { return 2 * shape.cp * part * KvRows(shape).kv; }

// Counts the same of a reduction's input.
inline int64_t ReduceBytes(const ByteShape& shape, int64_t part) {
  return 2 * shape.cp * part * KvRows(shape).gradient;
}

}  // namespace stemma
