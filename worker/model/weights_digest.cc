#include "worker/model/weights_digest.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "common/base/digest.h"
#include "common/base/status_macros.h"

namespace stemma::worker {
namespace {

constexpr size_t kPartBytes = size_t{1} << 20;
constexpr size_t kLanes = 8;  // that do not wait for each other
constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
constexpr int kTurn = 29;
using Block = std::array<uint64_t, kLanes>;

// One to one in each argument: a word that differs leaves a state that differs, whatever follows.
uint64_t Mix(uint64_t state, uint64_t word) { return std::rotl((state ^ word) * kOdd, kTurn); }

// In parts, side by side: the result is the same with any number of threads.
uint64_t MixTensor(const at::Tensor& values) {
  const size_t bytes = values.nbytes();
  std::vector<uint64_t> parts((bytes + kPartBytes - 1) / kPartBytes);
  at::parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const char* from = static_cast<const char*>(values.data_ptr()) + i * kPartBytes;
      parts[i] = MixBytes(from, std::min(kPartBytes, bytes - i * kPartBytes));
    }
  });
  return MixBytes(parts.data(), parts.size() * sizeof(uint64_t));
}

}  // namespace

uint64_t MixBytes(const void* bytes, size_t count) {
  Block state, block;
  for (size_t lane = 0; lane < kLanes; ++lane) state[lane] = lane + 1;
  const char* from = static_cast<const char*>(bytes);
  const char* const end = from + count;
  for (; from < end; from += sizeof(block)) {
    const auto left = static_cast<size_t>(end - from);
    if (left < sizeof(block)) block = {};
    std::memcpy(block.data(), from, left < sizeof(block) ? left : sizeof(block));
    for (size_t lane = 0; lane < kLanes; ++lane) state[lane] = Mix(state[lane], block[lane]);
    if (left < sizeof(block)) break;
  }
  uint64_t all = count;
  for (const uint64_t lane : state) all = Mix(all, lane);
  return all;
}

std::string WeightsDigest(const Weights& weights) {
  Sha256 digest;
  for (const Parameter& p : weights.parameters) {
    digest.UpdateInteger(p.name.size());
    digest.Update(p.name);
    digest.UpdateInteger(static_cast<uint64_t>(p.weight.dim()));
    for (const int64_t size : p.weight.sizes()) digest.UpdateInteger(static_cast<uint64_t>(size));
    digest.UpdateInteger(static_cast<uint64_t>(p.weight.scalar_type()));
    const at::Tensor values = p.weight.cpu().contiguous();
    digest.UpdateInteger(MixTensor(values));
  }
  return digest.FinishHex();
}

absl::StatusOr<std::string> MeshDigest(const Weights& weights, Communicator& tp) {
  std::string own = WeightsDigest(weights);
  if (tp.size() == 1) return own;
  const auto digits = static_cast<int64_t>(own.size());
  const at::Tensor input = at::empty({digits}, at::kByte);
  at::Tensor output = at::empty({tp.size() * digits}, at::kByte);
  std::memcpy(input.data_ptr(), own.data(), own.size());
  RETURN_IF_ERROR(tp.AllGather("weights digest", input, output));
  Sha256 digest;
  digest.Update({static_cast<const char*>(output.data_ptr()), output.nbytes()});
  return digest.FinishHex();
}

}  // namespace stemma::worker
