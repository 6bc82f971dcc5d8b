// The packed rows of a cluster's prefixes as one rank runs them, block by block: all of them, or the pieces that
// context parallelism deals to it (common/cost/context_rows.h).
//
// Called by worker/model. Invariant: the pieces of a block are ascending, and its own rows are theirs, in that order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/cost/context_rows.h"
#include "worker/backend/backend.h"

namespace stemma::worker {

// Rows [begin, end) of all packed ones, and [own_begin, own_end) of those that this rank runs.
struct PrefixBlockRows {
  int64_t begin = 0, end = 0;
  int64_t own_begin = 0, own_end = 0;
  std::vector<ContextPiece> pieces;  // this rank's

  int64_t own_rows() const { return own_end - own_begin; }
};

struct PrefixRows {
  std::vector<int64_t> begins;       // of each prefix among the packed rows
  std::vector<ContextPiece> pieces;  // of all ranks
  std::vector<PrefixBlockRows> blocks;
  int64_t rows = 0, own_rows = 0;
  int64_t rank = 0, ranks = 1;

  // Returns the first row behind prefix `index`.
  int64_t end_of(int64_t index) const {
    const auto next = static_cast<size_t>(index) + 1;
    return next < begins.size() ? begins[next] : rows;
  }
};

// lengths: of each prefix, > 0. block_rows: 0: one block.
PrefixRows MakePrefixRows(const std::vector<int64_t>& lengths, int64_t block_rows, int64_t rank, int64_t ranks);

// Where the rows [begin, end) of the packed prefixes stand in the parts that ranks exchange. A part is a tensor
// [2, part, K, E]: K, or its gradients, of the rank's rows, and V; rows that the rank with most rows has more of are
// padding. The parts of all ranks are [ranks, 2, part, K, E].
class PartIndex {
 public:
  // No piece lies across `begin` or `end`.
  PartIndex(const PrefixRows& rows, int64_t begin, int64_t end, const Backend& backend);

  int64_t part_rows() const { return part_rows_; }
  // Returns the rank's own rows of x, which holds the rows [begin, end) all.
  at::Tensor Own(const at::Tensor& x) const;
  // Returns this rank's part, with zeros for padding.
  at::Tensor Part(const at::Tensor& k_TKE, const at::Tensor& v_TKE) const;
  // Puts the rows of all parts into k and v, which have room for them.
  void Unpack(const at::Tensor& parts, at::Tensor k_TKE, at::Tensor v_TKE) const;
  // Returns the parts of all ranks, with zeros for padding.
  at::Tensor Parts(const at::Tensor& k_TKE, const at::Tensor& v_TKE) const;

 private:
  const int64_t ranks_, part_rows_;
  at::Tensor own_T_;            // of this rank's rows, where they stand in the range
  at::Tensor k_of_T_, v_of_T_;  // of each row of the range, where it stands in the parts of all ranks
};

}  // namespace stemma::worker
