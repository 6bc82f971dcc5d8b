// The loss in a plain loop over rows (worker/backend/loss_row.h). Formulas with their clamps: docs/losses.md.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "worker/backend/cpu/cpu_kernels.h"
#include "worker/backend/loss_row.h"
#include "worker/backend/tensor_data.h"

namespace stemma::worker {
namespace {

// The arrays behind the operands.
LossRowData RowDataOf(const LossOperands& args) {
  LossRowData rows{.old_log_prob = Data<double>(args.rows.old_log_prob_T),
                   .ref_log_prob = Data<double>(args.rows.ref_log_prob_T),
                   .advantage = Data<double>(args.rows.advantage_T),
                   .importance_weight = Data<double>(args.rows.importance_weight_T),
                   .loss_weight = Data<double>(args.rows.loss_weight_T),
                   .weight = Data<double>(args.rows.weight_T),
                   .mask = Data<double>(args.rows.mask_T),
                   .log_prob = Data<double>(args.log_prob_T),
                   .entropy = Data<double>(args.entropy_T),
                   .dlog_prob = Data<double>(args.dlog_prob_T),
                   .dentropy = Data<double>(args.dentropy_T),
                   .count = args.log_prob_T.numel()};
  if (rows.old_log_prob == nullptr) rows.old_log_prob = rows.log_prob;  // on policy
  return rows;
}

// The mean log-ratio of each row's rollout, for the one mode that reads it.
std::vector<double> SequenceLogRatios(const LossRowData& rows, const at::Tensor& rollout_T) {
  const int64_t* rollout = rollout_T.const_data_ptr<int64_t>();
  std::vector<double> ratios(static_cast<size_t>(rows.count));
  for (int64_t begin = 0, end = 0; begin < rows.count; begin = end) {
    double sum = 0, count = 0;
    for (end = begin; end < rows.count && rollout[end] == rollout[begin]; ++end) {
      if (rows.mask[end] == 0) continue;
      sum += rows.log_prob[end] - rows.old_log_prob[end];
      count += 1;
    }
    std::fill(ratios.begin() + begin, ratios.begin() + end, sum / std::max(count, 1.0));
  }
  return ratios;
}

}  // namespace

void CpuLoss(const LossOperands& args) {
  const LossRowOptions options = LossRowOptionsOf(args.options);
  const LossRowData rows = RowDataOf(args);
  std::vector<double> sequence_log_ratios(static_cast<size_t>(rows.count));
  if (options.mode == LossMode::kGspo) sequence_log_ratios = SequenceLogRatios(rows, args.rows.rollout_T);
  LossRowSums sums;
  static_assert(sizeof sums == kNumLossSums * sizeof(double) && offsetof(LossRowSums, kl) == kSumKl * sizeof(double) &&
                offsetof(LossRowSums, plain_entropy) == kSumPlainEntropy * sizeof(double));
  std::memcpy(&sums, Data<double>(args.sums), sizeof sums);
  for (int64_t row = 0; row < rows.count; ++row) {
    AddLossOfRow(options, rows, row, sequence_log_ratios[static_cast<size_t>(row)], sums);
  }
  std::memcpy(Data<double>(args.sums), &sums, sizeof sums);
}

}  // namespace stemma::worker
