#include "common/admission/header_rules.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/names.h"
#include "common/trace/loss_names.h"

namespace stemma {
namespace {

// One scalar field: its path, whether it is there, its value.
struct Scalar {
  std::string field;
  bool present = false;
  double value = 0;
};

// A knob is required, allowed or never read.
enum class Use { kRequired, kOptional, kNeverRead };

class HeaderCheck {
 public:
  HeaderCheck(const RunNumbers& numbers, Violations& violations) : numbers_(numbers), violations_(violations) {}

  const RunNumbers& numbers() const { return numbers_; }

  void Add(const std::string& field, const std::string& text) { violations_.Add(field, text); }

  // Refuses a field that is set and that nothing reads: the sender believes that it counts. `readers`: such as "only
  // shuffle reads it".
  void Unread(const std::string& field, bool is_set, const std::string& readers) {
    if (is_set) Add(field, absl::StrCat("is set, but ", readers, ": leave it out"));
  }
  void NeverRead(const std::string& field, bool is_set, const std::string& reader) {
    Unread(field, is_set, absl::StrCat(reader, " never reads it"));
  }

  // True: present and finite, to be checked further.
  bool Check(const Scalar& scalar, Use use, const std::string& reader) {
    if (!scalar.present) {
      if (use == Use::kRequired) Add(scalar.field, absl::StrCat("is missing: ", reader, " needs it"));
      return false;
    }
    if (use == Use::kNeverRead) {
      NeverRead(scalar.field, /*is_set=*/true, reader);
      return false;
    }
    if (std::isfinite(scalar.value)) return Passes(scalar, CheckMagnitude(scalar.value, numbers_));
    Add(scalar.field, absl::StrCat("is ", scalar.value, ", must be finite"));
    return false;
  }

  void AtLeast(const Scalar& scalar, double minimum, Use use, const std::string& reader) {
    if (!Check(scalar, use, reader) || scalar.value >= minimum) return;
    Add(scalar.field, absl::StrCat("is ", scalar.value, ", must be at least ", minimum));
  }

  void Above(const Scalar& scalar, double bound, Use use, const std::string& reader) {
    if (!Check(scalar, use, reader) || scalar.value > bound) return;
    Add(scalar.field, absl::StrCat("is ", scalar.value, ", must be above ", bound));
  }

  // Above 0, and not so small that it, or 1 over it, is lost; or as `check` has it.
  void Positive(const Scalar& scalar, Use use, const std::string& reader,
                std::string (*check)(double, const RunNumbers&) = CheckPositive) {
    if (!Check(scalar, use, reader)) return;
    if (scalar.value <= 0) return Add(scalar.field, absl::StrCat("is ", scalar.value, ", must be above 0"));
    Passes(scalar, check(scalar.value, numbers_));
  }

  // True: no problem, which is the empty text.
  bool Passes(const Scalar& scalar, const std::string& problem) {
    if (!problem.empty()) Add(scalar.field, problem);
    return problem.empty();
  }

 private:
  const RunNumbers numbers_;
  Violations& violations_;
};

// Refuses what only UpdateActor reads of a request's header at `path`: it keeps its request, and answers what became of
// it.
void CheckNotKept(const std::string& path, const v1::RequestHeader& header, const std::string& reader,
                  HeaderCheck& check) {
  check.NeverRead(path + ".validate_only", header.validate_only(), reader);
  check.NeverRead(path + ".wait_ms", header.has_wait_ms(), reader);
  check.NeverRead(path + ".on_nonfinite", header.on_nonfinite() != v1::ON_NONFINITE_UNSPECIFIED, reader);
}

void CheckRequestHeader(const std::string& path, const v1::RequestHeader& header, bool update, HeaderCheck& check) {
  if (update || !header.request_id().empty()) {
    if (const absl::Status status = CheckRequestId(header.request_id()); !status.ok()) {
      check.Add(path + ".request_id", std::string(status.message()));
    }
  }
  if (header.has_expected_lineage()) {
    if (const absl::Status status = CheckFileName(header.expected_lineage()); !status.ok()) {
      check.Add(path + ".expected_lineage", std::string(status.message()));
    }
  }
  if (header.has_schedule() &&
      (header.schedule() == v1::SCHEDULE_UNSPECIFIED || !v1::Schedule_IsValid(header.schedule()))) {
    check.Add(path + ".schedule", absl::StrCat("is ", header.schedule(), ", none of AUTO, REUSE, DENSE"));
  }
  if (!v1::OnNonfinite_IsValid(header.on_nonfinite())) {
    check.Add(path + ".on_nonfinite", absl::StrCat("is ", header.on_nonfinite(), ", neither ABORT nor SKIP"));
  }
  if (!update) CheckNotKept(path, header, "ComputeLogProb", check);
}

void CheckLossMode(const v1::LossConfig& loss, HeaderCheck& check, RolloutNeeds& needs) {
  const absl::StatusOr<LossMode> mode = ParseLossMode(loss.loss_mode());
  if (!mode.ok()) return check.Add("update.loss.loss_mode", std::string(mode.status().message()));
  const LossModeRequirements reads = RequirementsOf(*mode);
  const std::string reader = absl::StrCat("loss_mode ", loss.loss_mode());
  const Use clip = reads.needs_clip ? Use::kRequired : Use::kNeverRead;
  check.AtLeast({"update.loss.clip_ratio_low", loss.has_clip_ratio_low(), loss.clip_ratio_low()}, 0, clip, reader);
  check.AtLeast({"update.loss.clip_ratio_high", loss.has_clip_ratio_high(), loss.clip_ratio_high()}, 0, clip, reader);
  check.Above({"update.loss.clip_ratio_c", loss.has_clip_ratio_c(), loss.clip_ratio_c()}, 1,
              reads.reads_clip_c ? Use::kOptional : Use::kNeverRead, reader);
  check.NeverRead("update.loss.normalize_advantage_std", loss.has_normalize_advantage_std() && !reads.needs_advantage,
                  reader);
  needs.mode_known = true;
  needs.loss_mode = loss.loss_mode();
  needs.advantages = needs.reads_advantages = reads.needs_advantage;
  needs.loss_weights = needs.reads_loss_weights = reads.needs_loss_weights;
  needs.reads_importance_weights = reads.reads_importance_weights;
  needs.normalize_std_given = loss.has_normalize_advantage_std();
}

void CheckLoss(const v1::LossConfig& loss, HeaderCheck& check, RolloutNeeds& needs) {
  CheckLossMode(loss, check, needs);
  const absl::StatusOr<AggMode> agg = ParseAggMode(loss.loss_agg_mode());
  if (!agg.ok()) {
    check.Add("update.loss.loss_agg_mode", std::string(agg.status().message()));
  } else {
    check.Positive({"update.loss.loss_scale_factor", loss.has_loss_scale_factor(), loss.loss_scale_factor()},
                   *agg == AggMode::kSeqMeanTokenSumNorm ? Use::kRequired : Use::kNeverRead,
                   absl::StrCat("loss_agg_mode ", loss.loss_agg_mode()));
  }
  check.Positive({"update.loss.temperature", loss.has_temperature(), loss.temperature()}, Use::kRequired, "every loss",
                 CheckTemperature);
  check.Check({"update.loss.entropy_coeff", loss.has_entropy_coeff(), loss.entropy_coeff()}, Use::kOptional, "");
}

constexpr char kWithoutKl[] = "for a loss without one leave kl_loss_coef out";

// True if there is a KL term with its reference, or neither.
bool CheckKl(const v1::UpdateHeader& header, HeaderCheck& check) {
  const v1::LossConfig& loss = header.loss();
  const bool wanted = loss.has_kl_loss_type() || loss.has_kl_loss_coef() || header.has_ref();
  if (!wanted) return true;
  check.AtLeast({"update.loss.kl_loss_coef", loss.has_kl_loss_coef(), loss.kl_loss_coef()}, 0, Use::kRequired,
                "the KL term");
  if (!loss.has_kl_loss_type()) {
    check.Add("update.loss.kl_loss_type", absl::StrCat("is missing: the KL term needs it; ", kWithoutKl));
  } else if (const auto type = ParseKlType(loss.kl_loss_type()); !type.ok()) {
    check.Add("update.loss.kl_loss_type", std::string(type.status().message()));
  }
  if (!header.has_ref()) {
    check.Add("update.ref",
              absl::StrCat("is missing: the KL term needs reference log-probs, from CLIENT (ref_log_prob of "
                           "each rollout) or from WEIGHTS; ",
                           kWithoutKl));
  }
  return header.has_ref();
}

// "", or what is wrong with the name of weights.
std::string WeightsProblem(const std::string& name) {
  const absl::Status status = CheckFileName(name);
  if (status.ok()) return "";
  return absl::StrCat(std::string(status.message()), "; it is \"policy\" or the name of a checkpoint");
}

// True if the source is one that a server can have.
bool CheckSource(const std::string& field, const v1::LogProbSource& source, bool is_ref, HeaderCheck& check) {
  using Source = v1::LogProbSource;
  const bool known = Source::From_IsValid(source.from()) && source.from() != Source::FROM_UNSPECIFIED;
  if (!known || (is_ref && (source.from() == Source::ROLLOUT || source.from() == Source::ON_POLICY))) {
    check.Add(field + ".from", absl::StrCat("is ", Source::From_Name(source.from()), ", must be one of ",
                                            is_ref ? "CLIENT, WEIGHTS" : "CLIENT, ROLLOUT, ON_POLICY, WEIGHTS"));
    return false;
  }
  if (source.from() == Source::WEIGHTS) {
    const std::string problem = WeightsProblem(source.weights());
    if (!problem.empty()) check.Add(field + ".weights", problem);
    return problem.empty();
  }
  check.Unread(field + ".weights", !source.weights().empty(), "only from WEIGHTS reads it");
  return true;
}

void CheckSources(const v1::UpdateHeader& header, bool kl_is_right, HeaderCheck& check, RolloutNeeds& needs) {
  using Source = v1::LogProbSource;
  const absl::StatusOr<LossMode> mode = ParseLossMode(header.loss().loss_mode());
  const bool old_is_right = mode.ok() && NeedsOldLogProbs(*mode) == header.has_old();
  if (mode.ok() && !old_is_right) {
    const std::string reader = absl::StrCat("loss_mode ", header.loss().loss_mode());
    check.NeverRead("update.old", header.has_old(), reader);
    if (!header.has_old()) check.Add("update.old", absl::StrCat("is missing: ", reader, " needs it"));
  }
  const bool old_known = !header.has_old() || CheckSource("update.old", header.old(), /*is_ref=*/false, check);
  const bool ref_known = !header.has_ref() || CheckSource("update.ref", header.ref(), /*is_ref=*/true, check);
  needs.old_known = old_is_right && old_known;
  needs.ref_known = kl_is_right && ref_known;
  needs.old_from = header.has_old() ? Source::From_Name(header.old().from()) : "absent";
  needs.ref_from = header.has_ref() ? Source::From_Name(header.ref().from()) : "absent";
  needs.old_log_probs = header.has_old() && header.old().from() == Source::CLIENT;
  needs.rollout_log_probs = header.has_old() && header.old().from() == Source::ROLLOUT;
  needs.ref_log_prob = header.has_ref() && header.ref().from() == Source::CLIENT;
}

void CheckAdam(const v1::AdamParams& adam, HeaderCheck& check) {
  const std::string reader = "AdamW";
  const Scalar rate{"update.adam.learning_rate", adam.has_learning_rate(), adam.learning_rate()};
  const bool rate_known =
      check.Check(rate, Use::kRequired, reader) && check.Passes(rate, CheckLearningRate(rate.value));
  const Scalar eps{"update.adam.eps", adam.has_eps(), adam.eps()};
  if (check.Check(eps, Use::kRequired, reader)) check.Passes(eps, CheckEps(eps.value, check.numbers()));
  const Scalar decay{"update.adam.weight_decay", adam.has_weight_decay(), adam.weight_decay()};
  if (check.Check(decay, Use::kRequired, reader)) {
    check.Passes(decay, CheckWeightDecay(decay.value, rate_known ? rate.value : 0));
  }
  const Scalar norm{"update.adam.max_grad_norm", adam.has_max_grad_norm(), adam.max_grad_norm()};
  if (adam.max_grad_norm() > 0) {
    check.Positive(norm, Use::kRequired, reader);
  } else {
    check.AtLeast(norm, 0, Use::kRequired, absl::StrCat(reader, " (0: no clipping)"));
  }
  for (const Scalar& beta : {Scalar{"update.adam.beta1", adam.has_beta1(), adam.beta1()},
                             Scalar{"update.adam.beta2", adam.has_beta2(), adam.beta2()}}) {
    if (check.Check(beta, Use::kRequired, reader)) check.Passes(beta, CheckBeta(beta.value, check.numbers()));
  }
  if (!v1::AdamParams::WeightDecayScope_IsValid(adam.weight_decay_scope()) ||
      (adam.weight_decay() > 0 && adam.weight_decay_scope() == v1::AdamParams::WEIGHT_DECAY_SCOPE_UNSPECIFIED)) {
    check.Add("update.adam.weight_decay_scope", "is missing: with weight_decay > 0 it must be ALL or MATRICES");
  }
}

void CheckMiniBatches(const v1::UpdateHeader& header, HeaderCheck& check) {
  if (header.has_ppo_mini_batch_size() && header.ppo_mini_batch_size() == 0) {
    check.Add("update.ppo_mini_batch_size", "is 0, must be at least 1 group");
  }
  if (header.has_ppo_epochs() && header.ppo_epochs() == 0) check.Add("update.ppo_epochs", "is 0, must be at least 1");
  if (header.shuffle() && !header.has_seed()) check.Add("update.seed", "is missing: shuffle needs it");
  check.Unread("update.seed", header.has_seed() && !header.shuffle(), "only shuffle reads it");
}

}  // namespace

RolloutNeeds CheckUpdateHeader(const v1::UpdateHeader& header, const RunNumbers& numbers, Violations& violations) {
  HeaderCheck check(numbers, violations);
  RolloutNeeds needs;
  CheckRequestHeader("update.request", header.request(), /*update=*/true, check);
  CheckLoss(header.loss(), check, needs);
  const bool kl_is_right = CheckKl(header, check);
  CheckSources(header, kl_is_right, check, needs);
  CheckAdam(header.adam(), check);
  CheckMiniBatches(header, check);
  check.Unread("update.trace_step", header.has_trace_step() && header.request().validate_only(),
               "validate_only runs no step");
  return needs;
}

void CheckVerification(const v1::UpdateHeader& header, const RunNumbers& numbers, Violations& violations) {
  HeaderCheck check(numbers, violations);
  const std::string reader = "VerifyGroup";
  CheckNotKept("update.request", header.request(), reader, check);
  check.NeverRead("update.trace_step", header.has_trace_step(), reader);
  check.NeverRead("update.return_log_probs", header.return_log_probs(), reader);
  if (header.request().schedule() == v1::DENSE) {
    check.Add("update.request.schedule",
              "is DENSE, with which VerifyGroup compares: give REUSE or AUTO, or leave it out");
  }
}

void CheckLogProbHeader(const v1::LogProbHeader& header, const RunNumbers& numbers, Violations& violations) {
  HeaderCheck check(numbers, violations);
  CheckRequestHeader("log_prob.request", header.request(), /*update=*/false, check);
  if (const std::string problem = WeightsProblem(header.weights()); !problem.empty()) {
    check.Add("log_prob.weights", problem);
  }
  check.Positive({"log_prob.temperature", header.has_temperature(), header.temperature()}, Use::kRequired,
                 "ComputeLogProb", CheckTemperature);
}

}  // namespace stemma
