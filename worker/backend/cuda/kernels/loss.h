// The loss of rows: the CPU's formulas (worker/backend/loss_row.h), a thread per row. Private to worker/backend/cuda.
//
// A row moves 8 bytes for each array that its mode reads or writes, ten at most. Sums of a team go to
// partials[index()], kNumLossRowSums fp64 each, and AddColumnSums (sums.h) adds them up in a fixed order. For gspo a
// team per rollout first writes the mean log-ratio of its rows.
#pragma once

#include "worker/backend/cuda/kernels/elements.h"
#include "worker/backend/loss_row.h"

namespace stemma::worker::cuda {

inline constexpr int64_t kNumLossRowSums = sizeof(LossRowSums) / sizeof(double);

struct LossArgs {
  LossRowOptions options;
  LossRowData rows;
  const double* sequence_log_ratio_T;  // gspo; else null
  double* partials;                    // [teams, kNumLossRowSums], written
};

struct SequenceLogRatiosArgs {
  const double *log_prob_T, *old_log_prob_T, *mask_T;
  const int64_t* rollout_T;  // ascending
  double* ratio_T;           // written
  int64_t rows;
};

// The first row whose rollout is not below `rollout`.
STEMMA_DEVICE int64_t FirstRowOfRollout(const int64_t* rollout_T, int64_t rows, int64_t rollout) {
  int64_t low = 0, high = rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (rollout_T[middle] < rollout) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <typename Team>
STEMMA_DEVICE void SequenceLogRatios(Team& team, const SequenceLogRatiosArgs& a) {
  const int64_t last = a.rollout_T[a.rows - 1];
  for (int64_t rollout = a.rollout_T[0] + team.index(); rollout <= last; rollout += team.count()) {
    const int64_t begin = FirstRowOfRollout(a.rollout_T, a.rows, rollout);
    const int64_t end = FirstRowOfRollout(a.rollout_T, a.rows, rollout + 1);
    double sum = 0, count = 0;
    for (int64_t t = begin + team.rank(); t < end; t += team.size()) {
      if (a.mask_T[t] == 0) continue;
      sum += a.log_prob_T[t] - a.old_log_prob_T[t];
      count += 1;
    }
    sum = team.Sum(sum);
    count = team.Sum(count);
    const double mean = sum / (count < 1 ? 1.0 : count);
    for (int64_t t = begin + team.rank(); t < end; t += team.size()) a.ratio_T[t] = mean;
  }
}

template <typename Team>
STEMMA_DEVICE void Loss(Team& team, const LossArgs& a) {
  LossRowSums sums{};
  for (int64_t first = team.index() * team.size(); first < a.rows.count; first += team.count() * team.size()) {
    const int64_t t = first + team.rank();
    if (t >= a.rows.count) continue;
    AddLossOfRow(a.options, a.rows, t, a.sequence_log_ratio_T == nullptr ? 0 : a.sequence_log_ratio_T[t], sums);
  }
  const double own[kNumLossRowSums] = {
      sums.pg,     sums.kl,           sums.entropy, sums.clipped, sums.clipped_lower, sums.neg_log_ratio,
      sums.tokens, sums.plain_entropy};
  STEMMA_UNROLL
  for (int64_t i = 0; i < kNumLossRowSums; ++i) {
    const double sum = team.Sum(own[i]);
    if (team.rank() == 0) a.partials[team.index() * kNumLossRowSums + i] = sum;
  }
}

}  // namespace stemma::worker::cuda
