// The sum of weights' words on the host. Those of a device are copied there.
#include <ATen/Parallel.h>
#include <glog/logging.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/base/round_up.h"
#include "worker/backend/composed/composed_kernels.h"
#include "worker/backend/word_factors.h"

namespace stemma::worker::composed {
namespace {

template <typename Word>
uint64_t SumOfRows(const Word* words, const WordSumOperands& args) {
  const int64_t width = args.columns, end = args.first + args.values.numel();
  std::vector<uint64_t> columns(static_cast<size_t>(width));
  for (size_t i = 0; i < columns.size(); ++i) {
    columns[i] = ColumnFactor(static_cast<uint64_t>(args.column_begin) + i);
  }
  const int64_t first = args.first / width, last = DivideUp(end, width);
  std::vector<uint64_t> rows(static_cast<size_t>(last - first));  // apart, so that threads share nothing
  at::parallel_for(first, last, 1, [&](int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      const int64_t from = std::max(row * width, args.first), to = std::min((row + 1) * width, end);
      uint64_t sum = 0;
      for (int64_t at = from; at < to; ++at) {
        sum += columns[static_cast<size_t>(at - row * width)] * words[at - args.first];
      }
      rows[static_cast<size_t>(row - first)] = sum * RowFactor(static_cast<uint64_t>(args.row_begin + row));
    }
  });
  return std::accumulate(rows.begin(), rows.end(), uint64_t{0});
}

uint64_t Sum(const void* words, const WordSumOperands& args) {
  switch (args.values.element_size()) {
    case sizeof(uint16_t):
      return SumOfRows(static_cast<const uint16_t*>(words), args);
    case sizeof(uint32_t):
      return SumOfRows(static_cast<const uint32_t*>(words), args);
    case sizeof(uint64_t):
      return SumOfRows(static_cast<const uint64_t*>(words), args);
    default:
      LOG(FATAL) << "no run has elements of " << args.values.element_size() << " bytes";
  }
}

}  // namespace

void WordSum(const WordSumOperands& args) {
  const at::Tensor on_host = args.values.cpu();
  args.sum.fill_(static_cast<int64_t>(Sum(on_host.const_data_ptr(), args)));
}

}  // namespace stemma::worker::composed
