#include "tests/gpu/bench/warm_ups.h"

#include <algorithm>
#include <cmath>

#include "worker/backend/cuda/attention/attention_choice.h"
#include "worker/backend/cuda/attention/plan_ledger.h"

namespace stemma::testing {
namespace {

// So many suffixes take long enough for clocks and allocator to settle.
constexpr int64_t kWarmSuffixes = 16;
// cuDNN's keys are a multiple of it.
constexpr int64_t kKeysMultiple = 128;

// Waves of a shape until one has its plans. Every layer's call counts into one sum of its shape.
int64_t WavesUntilPlans(const ModelConfig& model, const GroupSize& size, int64_t suffixes) {
  const int64_t prefix = size.prompt - 1;
  const int64_t keys = worker::cuda::KeysOfFasterCall(prefix, prefix / kKeysMultiple * kKeysMultiple);
  if (keys == 0) return 1;  // FA2's, whatever is spent
  const double of_layer = 4 * static_cast<double>(suffixes * size.response) * static_cast<double>(keys) *
                          static_cast<double>(model.num_heads * model.head_size);
  const double of_wave = of_layer * static_cast<double>(model.num_layers);
  return static_cast<int64_t>(std::ceil(worker::cuda::kFlopsOfPlans / of_wave)) + 1;
}

}  // namespace

std::vector<WarmUp> PlainWarmUps(const TimedGroup& group) {
  const int64_t rollouts = group.size.rollouts, wave = group.dense ? 1 : std::min(rollouts, group.wave_suffixes);
  const int64_t last = rollouts % wave, few = wave + last;
  const int64_t many = std::clamp(wave * (kWarmSuffixes / wave) + last, few, std::max(few, rollouts));
  return {{group.dense, wave, few, 1}, {group.dense, wave, group.dense ? few : many, 1}};
}

std::vector<WarmUp> WarmUpsWithPlans(const ModelConfig& model, const TimedGroup& group) {
  const int64_t rollouts = group.size.rollouts, wave = group.dense ? 1 : std::min(rollouts, group.wave_suffixes);
  std::vector<WarmUp> warm_ups;
  for (const int64_t suffixes : {wave, rollouts % wave}) {
    if (suffixes == 0) continue;
    // Waves of one group share its prompt's work. No group is larger than the one that is timed.
    const int64_t waves = WavesUntilPlans(model, group.size, suffixes);
    const int64_t of_group = std::min(waves, rollouts / suffixes);
    warm_ups.push_back({false, suffixes, suffixes * of_group, (waves + of_group - 1) / of_group});
  }
  const std::vector<WarmUp> plain = PlainWarmUps(group);
  // The shapes of reuse have come by themselves.
  warm_ups.insert(warm_ups.end(), group.dense ? plain.begin() : plain.end() - 1, plain.end());
  return warm_ups;
}

}  // namespace stemma::testing
