#include "worker/loss/loss_plan.h"

#include <string>

#include "common/base/status_macros.h"
#include "common/trace/loss_names.h"

namespace stemma::worker {
namespace {

absl::StatusOr<LossOptions> OptionsOf(const v1::LossConfig& loss) {
  LossOptions options;
  ASSIGN_OR_RETURN(options.mode, ParseLossMode(loss.loss_mode()));
  options.clip_low = loss.clip_ratio_low();
  options.clip_high = loss.clip_ratio_high();
  if (loss.has_clip_ratio_c()) options.clip_c = loss.clip_ratio_c();
  options.entropy_coeff = loss.entropy_coeff();
  if (loss.has_kl_loss_coef()) {  // 0: the term is measured, and changes nothing
    ASSIGN_OR_RETURN(const KlName kl, ParseKlType(loss.kl_loss_type()));
    options.kl_coef = loss.kl_loss_coef();
    options.kl_type = kl.type;
    options.kl_straight_through = kl.straight_through;
  }
  return options;
}

absl::StatusOr<std::vector<std::vector<double>>> WeightsOf(const internal::v1::Prepare& prepare,
                                                           const std::vector<int64_t>& rollouts) {
  std::vector<std::vector<double>> weights(rollouts.size());
  const double denominator = prepare.denominator();
  const auto over_denominator = [&](double weight) { return denominator == 0 ? 0 : weight / denominator; };
  const bool one_for_all = prepare.rollout_weights_size() == 1;
  int next = 0;
  for (const uint32_t g : prepare.plan().groups()) {
    if (g >= rollouts.size()) {
      return absl::InvalidArgumentError("the plan names group " + std::to_string(g) + ", which is not in the payload");
    }
    for (int64_t r = 0; r < rollouts[g]; ++r) {
      if (!one_for_all && next == prepare.rollout_weights_size()) {
        return absl::InvalidArgumentError(
            "rollout_weights: one per rollout of the plan's groups is needed, or one for "
            "all; there are " +
            std::to_string(next));
      }
      weights[g].push_back(over_denominator(prepare.rollout_weights(one_for_all ? 0 : next++)));
    }
  }
  if (!one_for_all && next != prepare.rollout_weights_size()) {
    return absl::InvalidArgumentError("rollout_weights: the plan's groups have " + std::to_string(next) +
                                      " rollouts, there are " + std::to_string(prepare.rollout_weights_size()));
  }
  return weights;
}

std::string WeightsNamed(const v1::LogProbSource& source) {
  return source.from() == v1::LogProbSource::WEIGHTS ? source.weights() : "";
}

}  // namespace

absl::StatusOr<LossPlan> MakeLossPlan(const internal::v1::Prepare& prepare, const std::vector<int64_t>& rollouts) {
  LossPlan plan;
  ASSIGN_OR_RETURN(plan.options, OptionsOf(prepare.header().loss()));
  ASSIGN_OR_RETURN(plan.weights, WeightsOf(prepare, rollouts));
  plan.temperature = prepare.header().loss().temperature();
  plan.old_from = prepare.header().old().from();
  plan.old_weights = WeightsNamed(prepare.header().old());
  if (plan.options.kl_type != KlType::kNone) {
    plan.ref_from = prepare.header().ref().from();
    plan.ref_weights = WeightsNamed(prepare.header().ref());
  }
  return plan;
}

}  // namespace stemma::worker
