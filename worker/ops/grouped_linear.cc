#include "worker/ops/grouped_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

#include "worker/ops/linear.h"

namespace stemma::worker {
namespace {

// Calls multiply(expert, first row, rows) for every expert that has rows.
template <typename Multiply>
void ForEachExpert(const std::vector<int64_t>& ends, const Multiply& multiply) {
  int64_t begin = 0;
  for (size_t expert = 0; expert < ends.size(); ++expert) {
    if (ends[expert] > begin) multiply(static_cast<int64_t>(expert), begin, ends[expert] - begin);
    begin = ends[expert];
  }
}

void CheckRows(const at::Tensor& rows_AI, const at::Tensor& weight_XOI, const std::vector<int64_t>& ends) {
  CHECK_EQ(static_cast<size_t>(weight_XOI.size(0)), ends.size());
  CHECK_EQ(rows_AI.size(0), ends.back());
}

// Returns each row times its expert's matrix, then the rows of zeros.
at::Tensor GroupedProduct(const at::Tensor& rows_AI, const at::Tensor& matrix_XIO, const std::vector<int64_t>& ends,
                          int64_t zero_rows) {
  CheckRows(rows_AI, matrix_XIO, ends);
  at::Tensor product_AO = at::empty({rows_AI.size(0) + zero_rows, matrix_XIO.size(2)}, rows_AI.options());
  if (zero_rows > 0) product_AO.narrow(0, rows_AI.size(0), zero_rows).zero_();
  ForEachExpert(ends, [&](int64_t expert, int64_t begin, int64_t rows) {
    at::Tensor own_TO = product_AO.narrow(0, begin, rows);
    at::mm_out(own_TO, rows_AI.narrow(0, begin, rows), matrix_XIO.select(0, expert));
  });
  return product_AO;
}

}  // namespace

at::Tensor GroupedLinearForward(const at::Tensor& x_AI, const at::Tensor& weight_XOI, const std::vector<int64_t>& ends,
                                int64_t zero_rows) {
  RECORD_USER_SCOPE("GroupedLinearForward");
  return GroupedProduct(x_AI, weight_XOI.transpose(1, 2), ends, zero_rows);
}

at::Tensor GroupedLinearBackwardInput(const at::Tensor& dy_AO, const at::Tensor& weight_XOI,
                                      const std::vector<int64_t>& ends, int64_t zero_rows) {
  RECORD_USER_SCOPE("GroupedLinearBackwardInput");
  return GroupedProduct(dy_AO, weight_XOI, ends, zero_rows);
}

void GroupedLinearBackwardWeight(const Backend& backend, const at::Tensor& dy_AO, const at::Tensor& x_AI,
                                 const at::Tensor& dweight_XOI, const std::vector<int64_t>& ends) {
  RECORD_USER_SCOPE("GroupedLinearBackwardWeight");
  CheckRows(dy_AO, dweight_XOI, ends);
  ForEachExpert(ends, [&](int64_t expert, int64_t begin, int64_t rows) {
    LinearBackwardWeight(backend, dy_AO.narrow(0, begin, rows), x_AI.narrow(0, begin, rows),
                         dweight_XOI.select(0, expert), {});
  });
}

}  // namespace stemma::worker
