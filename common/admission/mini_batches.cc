#include "common/admission/mini_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/split_mix.h"

namespace stemma {
namespace {

std::vector<uint32_t> ShuffledOrder(uint32_t count, const std::string& payload_digest, uint64_t seed, uint64_t epoch) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  const uint64_t mixed = SplitMix64(SplitMix64(Fnv1a(payload_digest)).Next() ^ seed).Next() + epoch;
  SplitMix64 random(mixed);
  for (uint32_t left = count; left > 1; --left) {
    std::swap(order[left - 1], order[static_cast<uint32_t>(random.Next() % left)]);
  }
  return order;
}

}  // namespace

uint64_t NumSteps(const v1::UpdateHeader& header, uint64_t num_groups) {
  const uint64_t mini_batch = header.has_ppo_mini_batch_size() ? header.ppo_mini_batch_size() : num_groups;
  if (mini_batch == 0) return 0;
  const uint64_t steps_per_epoch = num_groups / mini_batch + (num_groups % mini_batch != 0);
  constexpr uint64_t kMost = uint64_t{1} << 63;
  uint64_t steps = 0;
  const bool overflows =
      __builtin_mul_overflow(steps_per_epoch, header.has_ppo_epochs() ? header.ppo_epochs() : 1, &steps);
  return overflows ? kMost : std::min(steps, kMost);
}

std::vector<std::vector<uint32_t>> MiniBatches(uint32_t count, const MiniBatchRule& rule, uint64_t epoch) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  if (rule.shuffle) order = ShuffledOrder(count, rule.payload_digest, rule.seed, epoch);
  const size_t size = rule.groups > 0 ? static_cast<size_t>(rule.groups) : order.size();
  std::vector<std::vector<uint32_t>> batches;
  for (size_t begin = 0; begin < order.size(); begin += size) {
    const size_t end = std::min(begin + size, order.size());
    batches.emplace_back(order.begin() + static_cast<int64_t>(begin), order.begin() + static_cast<int64_t>(end));
  }
  return batches;
}

}  // namespace stemma
