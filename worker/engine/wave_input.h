// What the model runs of a payload: the tokens of a cluster's prefixes, and the rows of a wave as tensors on the
// device, with what the head predicts. Called by the pass runner.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "stemma/v1/plan.pb.h"
#include "worker/engine/payload.h"
#include "worker/model/wave.h"
#include "worker/schedule/wave_rows.h"

namespace stemma::worker {

struct WaveTensors {
  WaveInput input;
  at::Tensor targets_B;  // int64: the response tokens of the members' rows, in order
};

// Errors: InvalidArgument - a token is not in the vocabulary. Kernels index by tokens without a look, so whatever makes
// a tensor of a payload's tokens asks this first.
absl::Status CheckTokens(const std::vector<int64_t>& tokens, int64_t vocab);

// Errors: as of CheckTokens, of all tokens of the members.
absl::Status CheckMemberTokens(const Payload& payload, const std::vector<MemberRows>& members, int64_t vocab);

// The prefixes of a cluster, one after the other, and the rows of each.
struct PrefixTokens {
  std::vector<int64_t> tokens, lengths;
};

// Errors: InvalidArgument - the cluster reuses the prefix of a group that is not in the payload, or has none; as of
// CheckTokens.
absl::StatusOr<PrefixTokens> TokensOfPrefixes(const Payload& payload, const v1::Cluster& cluster, int64_t vocab);

// `wave`: rows of `members` (worker/schedule/wave_rows.h), run with its cluster's suffix policy; of one that is cut by
// rows, this rank's pieces. Errors: those of CheckTokens.
absl::StatusOr<WaveTensors> MakeWaveTensors(const LayerContext& context, const Payload& payload,
                                            const std::vector<MemberRows>& members, const v1::Cluster& cluster,
                                            const v1::Wave& wave);

// The policy to run: S0 where the plan names none.
v1::TapePolicy PolicyOf(v1::TapePolicy planned);

}  // namespace stemma::worker
