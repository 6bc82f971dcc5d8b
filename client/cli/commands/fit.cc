#include "client/cli/commands/fit.h"

#include <algorithm>
#include <limits>

#include "common/base/run_config.h"
#include "common/cost/memory_choices.h"
#include "common/cost/prefix_bytes.h"
#include "common/cost/rank_shape.h"
#include "common/cost/state_bytes.h"
#include "common/cost/tape_policy.h"
#include "common/cost/wave_bytes.h"

namespace stemma::cli {
namespace {

// What a server that is told nothing else computes by.
ByteShape ShapeOf(const ModelConfig& model, RunDtype dtype) {
  v1::RunConfig run;
  FillDefaults(run);
  return {.config = model,
          .run_bytes = RunBytes(dtype),
          .accumulate_bytes = AccumulateBytes(dtype),
          .head_chunk_rows = HeadChunkRows(run)};
}

// Rows of one rollout in a wave: without a prefix of the group it computes the prompt itself.
int64_t MemberRows(const GroupLengths& lengths, const PrefixShape& prefix) {
  return lengths.response + (prefix.rows > 0 ? 0 : lengths.prompt - 1);
}

// The highest moment of the three phases.
int64_t PeakBytes(const ByteShape& shape, const GroupLengths& lengths, const PrefixShape& prefix,
                  v1::TapePolicy suffix_policy, int64_t members) {
  const int64_t rows = MemberRows(lengths, prefix), own_prefix = rows - lengths.response;
  WaveShape wave = {.rows = members * rows, .kv_only_rows = members * own_prefix, .policy = suffix_policy};
  AddRun({.rows = prefix.rows > 0 ? members * rows : rows,
          .longest_rows = rows,
          .ancestor_rows = prefix.rows,
          .kv_only_rows = own_prefix},
         wave);
  int64_t peak = SuffixBytes(shape, prefix, wave).peak();
  if (prefix.rows > 0) {
    peak = std::max({peak, PrefixForwardBytes(shape, prefix).peak(), PrefixBackwardBytes(shape, prefix).peak()});
  }
  return peak;
}

int64_t AllKeptBytes(const ByteShape& shape, const GroupLengths& lengths) {
  const int64_t prefix_rows = lengths.rollouts > 1 ? lengths.prompt - 1 : 0;  // else nothing is shared
  const PrefixShape prefix = {.rows = prefix_rows};
  const int64_t members = std::clamp<int64_t>(kWaveRows / MemberRows(lengths, prefix), 1, lengths.rollouts);
  return PeakBytes(shape, lengths, prefix, v1::S0, members);
}

// Every way in which the group's prefix can be computed; the first: not at all, each rollout in full.
std::vector<PrefixShape> PrefixWays(const GroupLengths& lengths) {
  std::vector<PrefixShape> ways = {{}};
  const int64_t rows = lengths.prompt - 1;
  if (rows == 0) return ways;
  for (const v1::TapePolicy policy : {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4, v1::S5}) {
    for (const bool offload : {false, true}) {
      if (offload && !KeepsInputs(policy)) continue;  // nothing to move
      PrefixShape way = {.rows = rows, .policy = policy, .offload = offload};
      ways.push_back(way);
      for (const int64_t block : kPrefixBlockRows) {
        way.block_rows = block;
        if (block < rows) ways.push_back(way);
      }
    }
  }
  return ways;
}

int64_t LeastBytes(const ByteShape& shape, const GroupLengths& lengths) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const PrefixShape& prefix : PrefixWays(lengths)) {
    for (const v1::TapePolicy suffix_policy : {v1::S0, v1::S1, v1::S2, v1::S3, v1::S4}) {
      least = std::min(least, PeakBytes(shape, lengths, prefix, suffix_policy, /*members=*/1));
    }
  }
  return least;
}

FitVerdict VerdictOf(const FitAnswer& answer) {
  if (answer.usable_bytes == 0) return FitVerdict::kUnknown;
  const int64_t left = answer.usable_bytes - answer.state_bytes;
  if (left <= answer.apply_bytes || answer.least_bytes > left) return FitVerdict::kNo;
  return answer.all_kept_bytes <= left ? FitVerdict::kAllKept : FitVerdict::kRecomputed;
}

}  // namespace

std::vector<FitAnswer> FitAnswers(const ModelConfig& model, const std::vector<std::string>& dtypes,
                                  const GroupLengths& lengths, int64_t device_bytes) {
  std::vector<FitAnswer> answers;
  for (const std::string& dtype : dtypes) {
    const StateBytes state = StateBytesOf(model, RunDtypeOf(dtype));
    const ByteShape shape = ShapeOf(model, RunDtypeOf(dtype));
    for (const v1::OptimizerResidency residency : {v1::DEVICE, v1::HOST}) {
      FitAnswer answer = {.dtype = dtype,
                          .residency = residency,
                          .state_bytes = state.device(residency),
                          .apply_bytes = state.apply(residency),
                          .host_bytes = state.host(residency),
                          .all_kept_bytes = AllKeptBytes(shape, lengths),
                          .least_bytes = LeastBytes(shape, lengths),
                          .usable_bytes = device_bytes - device_bytes / kDeviceReserveParts};
      answer.verdict = VerdictOf(answer);
      answers.push_back(answer);
    }
  }
  return answers;
}

}  // namespace stemma::cli
