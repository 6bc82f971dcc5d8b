#include "worker/engine/wave_input.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/arrays.h"
#include "common/base/status_macros.h"

namespace stemma::worker {
namespace {

void AppendTokens(const TokenArray& tokens, int64_t begin, int64_t end, std::vector<int64_t>& out) {
  for (int64_t i = begin; i < end; ++i) out.push_back(tokens[i]);
}

at::Tensor OnDevice(const Backend& backend, const std::vector<int64_t>& values) {
  return backend.send(at::tensor(values, at::TensorOptions(at::kCPU).dtype(at::kLong)), backend.device);
}

}  // namespace

absl::Status CheckTokens(const std::vector<int64_t>& tokens, int64_t vocab) {
  for (const int64_t token : tokens) {
    if (token < 0 || token >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("the payload holds token ", token, "; the model has tokens 0 to ", vocab - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMemberTokens(const Payload& payload, const std::vector<MemberRows>& members, int64_t vocab) {
  for (const MemberRows& m : members) {
    const v1::PromptGroup& group = payload.groups[m.group];
    const TokenArray prompt(group.prompt_tokens());
    const TokenArray response(group.rollouts(static_cast<int>(m.rollout)).response_tokens());
    std::vector<int64_t> tokens;
    AppendTokens(prompt, m.first_position, prompt.size(), tokens);
    AppendTokens(response, 0, response.size(), tokens);
    RETURN_IF_ERROR(CheckTokens(tokens, vocab));
  }
  return absl::OkStatus();
}

absl::StatusOr<PrefixTokens> TokensOfPrefixes(const Payload& payload, const v1::Cluster& cluster, int64_t vocab) {
  PrefixTokens prefixes;
  for (const uint32_t g : cluster.prefix_groups()) {
    if (g >= payload.groups.size() || payload.shapes[g].prompt_tokens < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan reuses the prefix of group ", g, ": not in the payload, or empty"));
    }
    prefixes.lengths.push_back(payload.shapes[g].prompt_tokens - 1);
    AppendTokens(TokenArray(payload.groups[g].prompt_tokens()), 0, prefixes.lengths.back(), prefixes.tokens);
  }
  RETURN_IF_ERROR(CheckTokens(prefixes.tokens, vocab));
  return prefixes;
}

absl::StatusOr<WaveTensors> MakeWaveTensors(const LayerContext& context, const Payload& payload,
                                            const std::vector<MemberRows>& members, const v1::Cluster& cluster,
                                            const v1::Wave& wave) {
  const Backend& backend = *context.backend;
  std::vector<int64_t> tokens, positions, targets;
  WaveTensors tensors;
  for (const MemberRows& m : members) {
    const v1::PromptGroup& group = payload.groups[m.group];
    const TokenArray prompt(group.prompt_tokens());
    const TokenArray response(group.rollouts(static_cast<int>(m.rollout)).response_tokens());
    const int64_t suffix_end = m.suffix_begin + m.end - m.begin - m.kv_only_rows;
    AppendTokens(prompt, m.first_position, prompt.size(), tokens);  // none of a later piece of a suffix
    AppendTokens(response, std::max<int64_t>(m.suffix_begin - 1, 0), suffix_end - 1, tokens);
    AppendTokens(response, m.suffix_begin, suffix_end, targets);
    for (int64_t row = m.begin; row < m.end; ++row) positions.push_back(m.first_position + row - m.begin);
    tensors.input.segments.push_back({m.begin, m.end, m.prefix, m.kv_only_rows});
  }
  for (const std::vector<int64_t>* list : {&tokens, &targets}) {
    RETURN_IF_ERROR(CheckTokens(*list, context.weights->config.vocab_size));
  }
  tensors.input.tokens_T = OnDevice(backend, tokens);
  tensors.input.positions_T = OnDevice(backend, positions);
  tensors.input.layout = wave.layout() == v1::PADDED ? CausalLayout::kPadded : CausalLayout::kLoop;
  tensors.input.policy = PolicyOf(cluster.suffix_policy());
  tensors.targets_B = OnDevice(backend, targets);
  if (!wave.cut_rows()) return tensors;
  const MemberRows& m = members.front();
  tensors.input.cut = std::make_shared<const CutRollout>(context, payload.shapes[m.group].response_tokens[m.rollout]);
  tensors.input.layout = CausalLayout::kLoop;  // pieces have ancestors of their own
  return tensors;
}

v1::TapePolicy PolicyOf(v1::TapePolicy planned) { return planned == v1::TAPE_POLICY_UNSPECIFIED ? v1::S0 : planned; }

}  // namespace stemma::worker
