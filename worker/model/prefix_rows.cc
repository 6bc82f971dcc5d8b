#include "worker/model/prefix_rows.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace stemma::worker {

PrefixRows MakePrefixRows(const std::vector<int64_t>& lengths, int64_t block_rows, int64_t rank, int64_t ranks) {
  PrefixRows all;
  all.rank = rank;
  all.ranks = ranks;
  for (const int64_t length : lengths) {
    all.begins.push_back(all.rows);
    all.rows += length;
  }
  all.pieces = DealContextRows(lengths, block_rows, ranks);
  const int64_t step = block_rows > 0 ? block_rows : all.rows;
  auto piece = all.pieces.begin();
  for (int64_t begin = 0; begin < all.rows; begin += step) {
    PrefixBlockRows block{begin, std::min(begin + step, all.rows), all.own_rows, all.own_rows, {}};
    for (; piece != all.pieces.end() && piece->begin < block.end; ++piece) {
      if (piece->rank != rank) continue;
      block.pieces.push_back(*piece);
      block.own_end += piece->rows();
    }
    all.own_rows = block.own_end;
    all.blocks.push_back(std::move(block));
  }
  return all;
}

PartIndex::PartIndex(const PrefixRows& rows, int64_t begin, int64_t end, const Backend& backend)
    : ranks_(rows.ranks), part_rows_(LargestContextPart(rows.pieces, begin, end, rows.ranks)) {
  std::vector<int64_t> next(static_cast<size_t>(rows.ranks)), own, k_of;
  for (const ContextPiece& piece : rows.pieces) {
    if (piece.end <= begin || piece.begin >= end) continue;
    int64_t& place = next[static_cast<size_t>(piece.rank)];
    for (int64_t row = piece.begin; row < piece.end; ++row) {
      if (piece.rank == rows.rank) own.push_back(row - begin);
      k_of.push_back(piece.rank * 2 * part_rows_ + place++);
    }
  }
  own_T_ = backend.send(at::tensor(own, at::kLong), backend.device);
  k_of_T_ = backend.send(at::tensor(k_of, at::kLong), backend.device);
  v_of_T_ = k_of_T_.add(part_rows_);
}

at::Tensor PartIndex::Own(const at::Tensor& x) const { return at::index_select(x, 0, own_T_); }

at::Tensor PartIndex::Part(const at::Tensor& k_TKE, const at::Tensor& v_TKE) const {
  at::Tensor part = at::zeros({2, part_rows_, k_TKE.size(1), k_TKE.size(2)}, k_TKE.options());
  part[0].narrow(0, 0, k_TKE.size(0)).copy_(k_TKE);
  part[1].narrow(0, 0, v_TKE.size(0)).copy_(v_TKE);
  return part;
}

void PartIndex::Unpack(const at::Tensor& parts, at::Tensor k_TKE, at::Tensor v_TKE) const {
  const at::Tensor rows = parts.view({ranks_ * 2 * part_rows_, k_TKE.size(1), k_TKE.size(2)});
  at::index_select_out(k_TKE, rows, 0, k_of_T_);
  at::index_select_out(v_TKE, rows, 0, v_of_T_);
}

at::Tensor PartIndex::Parts(const at::Tensor& k_TKE, const at::Tensor& v_TKE) const {
  at::Tensor parts = at::zeros({ranks_, 2, part_rows_, k_TKE.size(1), k_TKE.size(2)}, k_TKE.options());
  at::Tensor rows = parts.view({ranks_ * 2 * part_rows_, k_TKE.size(1), k_TKE.size(2)});
  rows.index_copy_(0, k_of_T_, k_TKE);
  rows.index_copy_(0, v_of_T_, v_TKE);
  return parts;
}

}  // namespace stemma::worker
