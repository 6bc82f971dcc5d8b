// What a worker sends of its results: each rollout once, in messages that every receiver takes.
#include "worker/engine/results.h"

#include <map>
#include <random>
#include <vector>

#include "common/base/message_sizes.h"
#include "gtest/gtest.h"

namespace stemma::worker {
namespace {

// Draws sizes so that some rollouts are tiny, some fill a chunk alone, and some are more than one.
size_t DrawTokens(std::mt19937& random) {
  const auto below = [&random](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  const size_t chunk = kResultChunkBytes / kResultBytesPerToken;
  return below(10) == 0 ? below(3 * chunk) : below(4) == 0 ? chunk - below(40) : below(2000);
}

TEST(ResultSenderTest, EveryRolloutIsSentOnceInChunksThatFit) {
  constexpr uint32_t kSeed = 71;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < 20; ++round) {
    const bool float64 = round % 2 == 0;
    std::map<std::string, size_t> sent, received;
    ResultSender sender("id", float64, [&](internal::v1::ResultChunk chunk) {
      if (chunk.group().rollouts_size() > 1) {
        EXPECT_LE(chunk.ByteSizeLong(), kResultChunkBytes + 1024) << "uid and id are not counted";
      }
      for (const v1::RolloutResult& rollout : chunk.group().rollouts()) {
        EXPECT_EQ(rollout.rollout_id().substr(0, 1), chunk.group().uid());
        EXPECT_FALSE(received.contains(rollout.rollout_id()));
        received[rollout.rollout_id()] = rollout.log_probs().size() / (float64 ? sizeof(double) : sizeof(float));
      }
    });
    for (int i = 0; i < 60; ++i) {
      const std::string uid(1, static_cast<char>('a' + i / 25)), id = uid + std::to_string(i);
      const std::vector<double> numbers(DrawTokens(random), -1);
      sent[id] = numbers.size();
      sender.Add(uid, id, numbers, i % 3 == 0 ? std::vector<double>() : numbers);
    }
    sender.Flush();
    EXPECT_EQ(sent, received);
  }
}

TEST(ResultSenderTest, ManyTinyResultsAreCountedWithTheirIds) {
  size_t messages = 0, bytes = 0;
  ResultSender sender("id", false, [&](const internal::v1::ResultChunk& chunk) {
    EXPECT_LE(chunk.ByteSizeLong(), kResultChunkBytes + 1024);
    ++messages;
    bytes += chunk.ByteSizeLong();
  });
  for (int i = 0; i < 30'000; ++i)
    sender.Add("g", std::string(250, 'x') + std::to_string(i), std::vector<double>{-1}, {});
  sender.Flush();
  EXPECT_GT(bytes, 3 * kResultChunkBytes);
  EXPECT_LE(messages, 2 * bytes / kResultChunkBytes) << "each message is as full as may be";
}

}  // namespace
}  // namespace stemma::worker
