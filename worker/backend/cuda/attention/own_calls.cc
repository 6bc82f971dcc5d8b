#include "worker/backend/cuda/attention/own_calls.h"

#include <algorithm>
#include <numeric>

namespace stemma::worker::cuda {

int64_t OwnCall::num_rows() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

bool EquallyLong(const std::vector<int64_t>& own_rows) {
  return std::all_of(own_rows.begin(), own_rows.end(), [&](int64_t rows) { return rows == own_rows.front(); });
}

std::vector<OwnCall> OwnCallsOf(const std::vector<int64_t>& own_rows, bool takes_batch,
                                const std::function<bool(int64_t rows)>& takes_alone) {
  if (takes_batch) return {{.begin = 0, .rows = own_rows, .dense = true}};
  std::vector<OwnCall> calls;
  int64_t begin = 0;
  for (const int64_t rows : own_rows) {
    const bool dense = takes_alone(rows);
    if (dense || calls.empty() || calls.back().dense) {
      calls.push_back({.begin = begin, .rows = {rows}, .dense = dense});
    } else {
      calls.back().rows.push_back(rows);
    }
    begin += rows;
  }
  return calls;
}

}  // namespace stemma::worker::cuda
