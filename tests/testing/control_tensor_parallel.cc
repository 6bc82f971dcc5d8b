#include "tests/testing/control_tensor_parallel.h"

#include <ATen/ops/roll.h>

namespace stemma::testing {
namespace {

class ResidualOfEveryRank final : public worker::RankTensorParallel {
 public:
  using RankTensorParallel::RankTensorParallel;
  at::Tensor ForwardSum(const at::Tensor& x_TI, const at::Tensor& weight_OI,
                        const at::Tensor& residual_TO) const override {
    return RankTensorParallel::ForwardSum(x_TI, weight_OI, residual_TO.mul(size()));
  }
};

class RowsOfOthers final : public worker::RankTensorParallel {
 public:
  using RankTensorParallel::RankTensorParallel;
  at::Tensor GatherRows(const at::Tensor& local_TD, int64_t rows) const override {
    return RankTensorParallel::GatherRows(local_TD, rows).roll(local_TD.size(0), 0);
  }
};

class RowSumsOfOthers final : public worker::RankTensorParallel {
 public:
  using RankTensorParallel::RankTensorParallel;

 private:
  at::Tensor ScatterSum(const at::Tensor& padded_TD) const override {
    return RankTensorParallel::ScatterSum(padded_TD.roll(padded_TD.size(0) / size(), 0));
  }
};

class OwnVocabulary final : public worker::RankTensorParallel {
 public:
  using RankTensorParallel::RankTensorParallel;
  at::Tensor Gather(const at::Tensor& values) const override {
    at::Tensor all = RankTensorParallel::Gather(values);
    for (int64_t other = 0; other < size(); ++other) {
      if (other != rank()) all.select(0, other).select(0, 0).fill_(-1e300);  // far below its own
    }
    return all;
  }
};

}  // namespace

std::unique_ptr<TensorParallel> MakeControlTensorParallel(const std::string& name, Communicator& tp) {
  if (name == "residual_of_every_rank") return std::make_unique<ResidualOfEveryRank>(tp);
  if (name == "rows_of_others") return std::make_unique<RowsOfOthers>(tp);
  if (name == "row_sums_of_others") return std::make_unique<RowSumsOfOthers>(tp);
  if (name == "own_vocabulary") return std::make_unique<OwnVocabulary>(tp);
  return nullptr;
}

}  // namespace stemma::testing
