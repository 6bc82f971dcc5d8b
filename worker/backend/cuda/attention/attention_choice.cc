#include "worker/backend/cuda/attention/attention_choice.h"

#include <algorithm>

namespace stemma::worker::cuda {
namespace {

constexpr int64_t kKeysOfBlock = 128;
// A block walks over at least two of its tiles of rows; below, its own keys' loads and stores are most of its work.
constexpr int64_t kMinRowsOfChunk = 128;
// Blocks run in rounds of one for each multiprocessor. Full enough, and so many rounds that the last one's rest is
// small.
constexpr double kFullShare = 0.9, kMinRounds = 1.9;
// Each chunk writes dk and dv anew: more than this costs more than the rest of a round.
constexpr double kMaxRounds = 4;

constexpr int64_t kLeastKeysOfSplit = 1024;

int64_t DivUp(int64_t x, int64_t y) { return (x + y - 1) / y; }

}  // namespace

int64_t ChunksOf(const PrefixCall& call, int64_t num_multiprocessors) {
  const int64_t blocks = DivUp(call.keys, kKeysOfBlock) * call.heads;
  const int64_t most = std::max<int64_t>(1, call.rows / kMinRowsOfChunk);
  int64_t best = 1;
  double best_share = 0;
  for (int64_t chunks = 1; chunks <= most; ++chunks) {
    const double rounds = static_cast<double>(chunks * blocks) / static_cast<double>(num_multiprocessors);
    if (chunks > 1 && rounds > kMaxRounds) break;
    const double share = rounds / static_cast<double>(DivUp(chunks * blocks, num_multiprocessors));
    if (share > best_share) {
      best = chunks;
      best_share = share;
    }
    if (rounds >= kMinRounds && share >= kFullShare) return chunks;
  }
  return best;
}

int64_t KeysOfFasterCall(int64_t keys, int64_t most) { return most == keys || most >= kLeastKeysOfSplit ? most : 0; }

}  // namespace stemma::worker::cuda
