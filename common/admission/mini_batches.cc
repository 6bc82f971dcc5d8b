#include "common/admission/mini_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace stemma {
namespace {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t state) : state_(state) {}
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

uint64_t Fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

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
