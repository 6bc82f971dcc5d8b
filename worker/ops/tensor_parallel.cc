#include "worker/ops/tensor_parallel.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

#include <algorithm>

#include "worker/backend/accumulate_type.h"
#include "worker/ops/linear.h"
#include "worker/parallel/collective_error.h"

namespace stemma::worker {
namespace {

class OneRank final : public TensorParallel {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  at::Tensor GatherRows(const at::Tensor& local_TD, int64_t /*rows*/) const override { return local_TD; }
  at::Tensor LocalPart(const at::Tensor& all_TD) const override { return all_TD; }
  at::Tensor ForwardSum(const at::Tensor& x_TI, const at::Tensor& weight_OI,
                        const at::Tensor& residual_TO) const override {
    return LinearForwardAdd(x_TI, weight_OI, residual_TO);
  }
  at::Tensor SumRows(const at::Tensor& partial_TD) const override { return partial_TD; }
  at::Tensor Gather(const at::Tensor& values) const override { return values.unsqueeze(0); }
};

}  // namespace

const TensorParallel& WholeLayers() {
  static const OneRank one_rank;
  return one_rank;
}

at::Tensor RankTensorParallel::GatherRows(const at::Tensor& local_TD, int64_t rows) const {
  RECORD_USER_SCOPE("GatherRows");
  const int64_t local_rows = LocalRows(rows);
  CHECK_EQ(local_TD.size(0), local_rows) << "of " << rows << " rows";
  at::Tensor all_TD = at::empty({size() * local_rows, local_TD.size(1)}, local_TD.options());
  ThrowUnlessOk(ranks_.AllGather(kRowsName, local_TD, all_TD));
  return all_TD.narrow(0, 0, rows);
}

at::Tensor RankTensorParallel::LocalPart(const at::Tensor& all_TD) const {
  const int64_t rows = all_TD.size(0), local_rows = LocalRows(rows);
  const int64_t begin = std::min(rank() * local_rows, rows), end = std::min(begin + local_rows, rows);
  at::Tensor local_TD = at::zeros({local_rows, all_TD.size(1)}, all_TD.options());
  local_TD.narrow(0, 0, end - begin).copy_(all_TD.slice(0, begin, end));
  return local_TD;
}

at::Tensor RankTensorParallel::ScatterSum(const at::Tensor& padded_TD) const {
  const at::ScalarType sum_dtype = AccType(padded_TD.scalar_type());
  const int64_t own_rows = padded_TD.size(0) / size();
  at::Tensor own_TD = sum_dtype == padded_TD.scalar_type()
                          ? padded_TD.narrow(0, rank() * own_rows, own_rows)
                          : at::empty({own_rows, padded_TD.size(1)}, padded_TD.options().dtype(sum_dtype));
  ThrowUnlessOk(ranks_.ReduceScatterSum(kRowSumsName, padded_TD, own_TD));
  return own_TD;
}

at::Tensor RankTensorParallel::ForwardSum(const at::Tensor& x_TI, const at::Tensor& weight_OI,
                                          const at::Tensor& residual_TO) const {
  RECORD_USER_SCOPE("ForwardSum");
  const int64_t rows = x_TI.size(0), columns = weight_OI.size(0);
  const at::Tensor padded = at::empty({size() * LocalRows(rows), columns}, x_TI.options());
  at::Tensor product = padded.narrow(0, 0, rows);
  at::mm_out(product, x_TI, weight_OI.t());
  padded.slice(0, rows).zero_();
  at::Tensor sum = ScatterSum(padded);
  // A part of `padded` would keep all of it.
  if (sum.scalar_type() == x_TI.scalar_type()) return at::add(sum, residual_TO);
  return sum.add_(residual_TO).to(x_TI.scalar_type());
}

at::Tensor RankTensorParallel::SumRows(const at::Tensor& partial_TD) const {
  RECORD_USER_SCOPE("SumRows");
  const int64_t rows = partial_TD.size(0);
  const at::Tensor padded = at::empty({size() * LocalRows(rows), partial_TD.size(1)}, partial_TD.options());
  padded.narrow(0, 0, rows).copy_(partial_TD);
  padded.slice(0, rows).zero_();
  return ScatterSum(padded).to(partial_TD.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor RankTensorParallel::Gather(const at::Tensor& values) const {
  std::vector<int64_t> shape = {size()};
  shape.insert(shape.end(), values.sizes().begin(), values.sizes().end());
  at::Tensor all = at::empty(shape, values.options());
  ThrowUnlessOk(ranks_.AllGather(kVocabularyName, values, all));
  return all;
}

}  // namespace stemma::worker
