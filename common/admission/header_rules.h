// What a request's header may hold, and what it makes the rollouts need. Pure.
//
// No silent defaults: what the loss mode needs and lacks is a problem, and so is a knob that it never reads. Numbers
// that the run's arithmetic cannot hold are problems, too.
#pragma once

#include <string>

#include "common/admission/run_numbers.h"
#include "common/admission/violations.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

// What the rollouts must bring. Where the header itself is wrong, nothing is asked of them.
struct RolloutNeeds {
  bool old_log_probs = false;
  bool rollout_log_probs = false;
  bool ref_log_prob = false;
  bool advantages = false;  // or a reward
  bool loss_weights = false;
  bool old_known = false;  // update.old is as the mode wants it: log-probs that it does not read are a problem
  bool ref_known = false;  // likewise update.ref
  std::string old_from;    // "WEIGHTS", "CLIENT", ..., "absent"
  std::string ref_from;
  bool mode_known = false;  // the rest is meaningful
  std::string loss_mode;
  bool reads_advantages = false;
  bool reads_loss_weights = false;
  bool reads_importance_weights = false;
  bool normalize_std_given = false;  // rewards can become advantages
};

RolloutNeeds CheckUpdateHeader(const v1::UpdateHeader& header, const RunNumbers& numbers, Violations& violations);
// Refuses what VerifyGroup does not read of a header that CheckUpdateHeader takes.
void CheckVerification(const v1::UpdateHeader& header, const RunNumbers& numbers, Violations& violations);
void CheckLogProbHeader(const v1::LogProbHeader& header, const RunNumbers& numbers, Violations& violations);

}  // namespace stemma
