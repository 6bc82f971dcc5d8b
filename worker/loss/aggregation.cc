#include "worker/loss/aggregation.h"

#include "glog/logging.h"

namespace stemma::worker {

double TokenWeight(AggMode mode, const TokenWeightInputs& inputs) {
  if (inputs.mask_sum == 0 || inputs.denominator == 0) return 0;
  switch (mode) {
    case AggMode::kTokenMean:
    case AggMode::kTokenSum:
    case AggMode::kSeqMeanTokenSum:
      return 1 / inputs.denominator;
    case AggMode::kSeqMeanTokenSumNorm:
      CHECK_GT(inputs.loss_scale_factor, 0);
      return 1 / inputs.loss_scale_factor / inputs.denominator;
    case AggMode::kSeqMeanTokenMean:
      return 1 / static_cast<double>(inputs.mask_sum) / inputs.denominator;
    case AggMode::kPromptMean:
      CHECK_GT(inputs.prompt_mean_weight, 0);
      return inputs.prompt_mean_weight / inputs.denominator;
  }
  LOG(FATAL) << "aggregation mode " << static_cast<int>(mode);
}

}  // namespace stemma::worker
