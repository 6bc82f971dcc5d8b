// What the tensor-parallel ranks of one copy of the model exchange inside its layers, as a strategy that the ops call.
//
// Each rank has some columns of every product: query and K/V heads, FFN columns, tokens of the vocabulary. Between the
// blocks of a layer, activations are cut by rows instead (sequence parallelism): of T rows rank r holds rows
// [r·c, (r+1)·c), c = LocalRows(T). Rows beyond T are padding: they are zeros, no gradient comes to them, and they are
// in no gathered tensor. So norms and residuals cost 1 / size of what they cost on one rank, and each block gathers
// rows once and scatters sums of rows once, in either direction, and a router its products beside. Gathering and
// summing are each other's backward:
//
//   GatherRows               rows of all ranks                     backward: SumRows
//   ForwardSum, SumRows      this rank's rows of the ranks' sum    backward: GatherRows
//
// A residual is added once, after the sum. Rows and what is summed travel in the dtype in which they are; sums are made
// in the accumulate dtype: fp32, also in a bf16 run, where each rank's product is rounded to bf16 before, and the sum
// after.
//
// With one rank nothing moves, and no row is padded: WholeLayers(). Tests put wrong strategies in its place. Engine
// thread only. Every rank makes the same calls in the same order. Throws CollectiveError where a rank has gone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/parallel/communicator.h"

namespace stemma::worker {

// The names of the collectives.
inline constexpr char kRowsName[] = "rows", kRowSumsName[] = "row_sums", kVocabularyName[] = "vocabulary";

class TensorParallel {
 public:
  virtual ~TensorParallel() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // Returns c.
  int64_t LocalRows(int64_t rows) const { return (rows + size() - 1) / size(); }

  // Returns all `rows` rows of what the ranks hold c rows of.
  virtual at::Tensor GatherRows(const at::Tensor& local_TD, int64_t rows) const = 0;
  // Returns this rank's c of all rows, which every rank has.
  virtual at::Tensor LocalPart(const at::Tensor& all_TD) const = 0;
  // Returns this rank's c rows of the sum of x Wᵀ over the ranks, plus the residual's, which has c.
  virtual at::Tensor ForwardSum(const at::Tensor& x_TI, const at::Tensor& weight_OI,
                                const at::Tensor& residual_TO) const = 0;
  // Returns this rank's c rows of the sum of `partial` over the ranks, in its dtype.
  virtual at::Tensor SumRows(const at::Tensor& partial_TD) const = 0;
  // Returns every rank's values, [size, ...], in the order of the ranks.
  virtual at::Tensor Gather(const at::Tensor& values) const = 0;
};

// Returns the strategy of a rank that holds whole layers. It has no state and lives for ever.
const TensorParallel& WholeLayers();

// The strategy over a communicator of the ranks.
class RankTensorParallel : public TensorParallel {
 public:
  explicit RankTensorParallel(Communicator& ranks) : ranks_(ranks) {}  // which outlives this

  int64_t rank() const override { return ranks_.rank(); }
  int64_t size() const override { return ranks_.size(); }
  at::Tensor GatherRows(const at::Tensor& local_TD, int64_t rows) const override;
  at::Tensor LocalPart(const at::Tensor& all_TD) const override;
  at::Tensor ForwardSum(const at::Tensor& x_TI, const at::Tensor& weight_OI,
                        const at::Tensor& residual_TO) const override;
  at::Tensor SumRows(const at::Tensor& partial_TD) const override;
  at::Tensor Gather(const at::Tensor& values) const override;

 protected:
  // Returns this rank's c rows of the sum of `padded` over the ranks, [size · c, D], in the accumulate dtype. Where
  // that is the dtype of `padded`, they are a view of where they stand in it, and its other rows are undefined
  // afterwards.
  virtual at::Tensor ScatterSum(const at::Tensor& padded_TD) const;

 private:
  Communicator& ranks_;
};

}  // namespace stemma::worker
