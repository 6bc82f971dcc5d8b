// Synthetic requests from a seed: lengths, tokens, masks, advantages and plausible log-probs. Pure; group g of step s
// is a function of (options, s, g) alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/trace/length_distribution.h"
#include "stemma/v1/training.pb.h"

namespace stemma::cli {

struct SyntheticTraceOptions {
  uint64_t seed = 0;
  int64_t steps = 1;
  int64_t groups = 4;                  // of a step
  LengthDistribution rollouts;         // N of a group
  LengthDistribution prompt_tokens;    // P
  LengthDistribution response_tokens;  // R
  double mask_probability = 0;         // that a response token is left out of the loss
  int64_t vocab_size = 0;
  std::string loss_mode = "vanilla";
  std::string loss_agg_mode = "token-mean";
  double learning_rate = 1e-6;
  double temperature = 1;
  double kl_loss_coef = 0;   // > 0: a KL term (low_var_kl) and ref_log_prob
  double entropy_coeff = 0;  // != 0: an entropy term
  double old_noise = 0.05;   // deviation of old (and ref) log-probs around the model's, or around -log(vocab)
};

// Header of every request. Errors: InvalidArgument - a name or a number that no server takes.
absl::StatusOr<v1::UpdateHeader> SyntheticHeader(const SyntheticTraceOptions& options);

// The most tokens of one request: a line of a trace holds 2^30 bytes, and a token with its log-probs takes some 16.
inline constexpr int64_t kSyntheticTokensMax = int64_t{1} << 26;

// `step` from 0. Old and ref log-probs, where the loss needs them, are noise around -log(vocab). Errors:
// InvalidArgument - more than kSyntheticTokensMax tokens, before they take memory.
absl::StatusOr<std::vector<v1::PromptGroup>> SyntheticGroups(const SyntheticTraceOptions& options,
                                                             const v1::UpdateHeader& header, int64_t step);

// Puts old and ref log-probs around `log_probs` [R] of the server's model instead.
void SetLogProbs(const SyntheticTraceOptions& options, const v1::UpdateHeader& header,
                 const std::vector<double>& log_probs, RandomValues& random, v1::Rollout& rollout);

}  // namespace stemma::cli
