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

}  // namespace

at::Tensor GroupedLinearForward(const at::Tensor& x_AI, const at::Tensor& weight_XOI,
                                const std::vector<int64_t>& ends) {
  RECORD_USER_SCOPE("GroupedLinearForward");
  CheckRows(x_AI, weight_XOI, ends);
  at::Tensor y_AO = at::empty({x_AI.size(0), weight_XOI.size(1)}, x_AI.options());
  ForEachExpert(ends, [&](int64_t expert, int64_t begin, int64_t rows) {
    at::Tensor y_TO = y_AO.narrow(0, begin, rows);
    at::mm_out(y_TO, x_AI.narrow(0, begin, rows), weight_XOI.select(0, expert).t());
  });
  return y_AO;
}

at::Tensor GroupedLinearBackwardInput(const at::Tensor& dy_AO, const at::Tensor& weight_XOI,
                                      const std::vector<int64_t>& ends) {
  RECORD_USER_SCOPE("GroupedLinearBackwardInput");
  CheckRows(dy_AO, weight_XOI, ends);
  at::Tensor dx_AI = at::empty({dy_AO.size(0), weight_XOI.size(2)}, dy_AO.options());
  ForEachExpert(ends, [&](int64_t expert, int64_t begin, int64_t rows) {
    at::Tensor dx_TI = dx_AI.narrow(0, begin, rows);
    at::mm_out(dx_TI, dy_AO.narrow(0, begin, rows), weight_XOI.select(0, expert));
  });
  return dx_AI;
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
