#include "worker/backend/cuda/attention/own_calls.h"

#include <algorithm>
#include <numeric>

namespace stemma::worker::cuda {
namespace {

bool EquallyLong(const std::vector<int64_t>& rows) {
  return std::all_of(rows.begin(), rows.end(), [&](int64_t count) { return count == rows.front(); });
}

}  // namespace

int64_t OwnCall::num_rows() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

std::vector<OwnCall> OwnCallsOf(const std::vector<int64_t>& own_rows, const OwnCallRules& rules) {
  if (own_rows.empty()) return {};
  if (EquallyLong(own_rows) && rules.takes_batch(static_cast<int64_t>(own_rows.size()), own_rows.front())) {
    return {{.begin = 0, .rows = own_rows, .dense = true}};
  }
  std::vector<OwnCall> calls;
  int64_t begin = 0;
  for (const int64_t rows : own_rows) {
    const bool dense = rules.takes_alone(rows);
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
