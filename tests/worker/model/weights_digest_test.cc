// Two ranks that hold the same weights, and no others, say the same digest.
#include "worker/model/weights_digest.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/synthetic.h"
#include "worker/parallel/thread_communicator.h"

namespace stemma::worker {
namespace {

Weights SomeWeights(at::ScalarType dtype = at::kFloat, int64_t layers = 2) {
  const ModelConfig config =
      testing::SyntheticModel({.hidden = 24, .layers = layers, .head_size = 6, .ffn = 20, .vocab = 30});
  Weights weights = MakeWeights(WholeModel(config), dtype, at::kCPU);
  double begin = 0;
  for (const Parameter& p : weights.parameters) {
    p.weight.copy_(
        at::arange(begin, begin + static_cast<double>(p.weight.numel()), 1.0).mul(1e-3).view(p.weight.sizes()));
    begin += 17;
  }
  return weights;
}

void FlipBit(const at::Tensor& weight, size_t bit) {
  static_cast<uint8_t*>(weight.data_ptr())[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
}

TEST(WeightsDigestTest, TheSameWeightsHaveTheSameDigest) {
  EXPECT_EQ(WeightsDigest(SomeWeights()), WeightsDigest(SomeWeights()));
  EXPECT_EQ(WeightsDigest(SomeWeights()).size(), 64u);
  Weights other_gradients = SomeWeights();
  other_gradients.parameters[0].grad.fill_(3);
  EXPECT_EQ(WeightsDigest(other_gradients), WeightsDigest(SomeWeights()));
}

TEST(WeightsDigestTest, AnyBitOfAnyParameterChangesIt) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Weights weights = SomeWeights(dtype);
    std::set<std::string> seen = {WeightsDigest(weights)};
    std::mt19937 random(7);
    for (const Parameter& p : weights.parameters) {
      for (const size_t bit : {size_t{0}, random() % (8 * p.weight.nbytes()), 8 * p.weight.nbytes() - 1}) {
        FlipBit(p.weight, bit);
        EXPECT_TRUE(seen.insert(WeightsDigest(weights)).second) << p.name << ", bit " << bit;
        FlipBit(p.weight, bit);
      }
    }
    EXPECT_TRUE(seen.contains(WeightsDigest(weights))) << "every bit is back";
  }
}

TEST(WeightsDigestTest, PlaceNameShapeAndDtypeCount) {
  const std::string digest = WeightsDigest(SomeWeights());
  Weights exchanged = SomeWeights();
  Parameter &a = exchanged.at(exchanged.layers[0][TensorRole::kNorm1]),
            &b = exchanged.at(exchanged.layers[1][TensorRole::kNorm1]);
  std::swap(a.weight, b.weight);
  EXPECT_NE(WeightsDigest(exchanged), digest);
  Weights renamed = SomeWeights();
  renamed.parameters[0].name.back() = 'x';
  EXPECT_NE(WeightsDigest(renamed), digest);
  Weights reshaped = SomeWeights();
  at::Tensor& weight = reshaped.at(reshaped.layers[0][TensorRole::kGateUp]).weight;
  weight = weight.view({weight.size(1), weight.size(0)});
  EXPECT_NE(WeightsDigest(reshaped), digest);
  EXPECT_NE(WeightsDigest(SomeWeights(at::kDouble)), digest);
  EXPECT_NE(WeightsDigest(SomeWeights(at::kFloat, /*layers=*/1)), digest);
}

// Digests of the ranks of one copy, each with its own weights, as all of them tell.
std::vector<std::string> DigestsOf(const std::vector<Weights>& weights) {
  auto ranks = MakeThreadRanks(static_cast<int>(weights.size()), absl::Minutes(2), "tp");
  std::vector<std::string> digests(weights.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < weights.size(); ++rank) {
    threads.emplace_back([&, rank] { digests[rank] = MeshDigest(weights[rank], *ranks[rank]).value(); });
  }
  for (std::thread& thread : threads) thread.join();
  return digests;
}

TEST(MeshDigestTest, AllRanksTellOneDigestOfAllParts) {
  const auto parts = [](int first, int second) {
    std::vector<Weights> weights;
    for (const int seed : {first, second, 3}) {
      weights.push_back(SomeWeights());
      weights.back().parameters[0].weight.fill_(seed);
    }
    return weights;
  };
  const std::vector<std::string> digests = DigestsOf(parts(1, 2));
  EXPECT_EQ(std::set<std::string>(digests.begin(), digests.end()).size(), 1u);
  EXPECT_EQ(digests[0].size(), 64u);
  EXPECT_EQ(DigestsOf(parts(1, 2))[0], digests[0]);
  EXPECT_NE(DigestsOf(parts(2, 1))[0], digests[0]) << "parts that changed their ranks";
  EXPECT_NE(DigestsOf(parts(1, 1))[0], digests[0]);
  EXPECT_NE(DigestsOf(parts(1, 4))[2], digests[0]) << "a part of another rank";
}

TEST(MeshDigestTest, WithOneRankItIsItsOwn) {
  std::vector<Weights> weights;
  weights.push_back(SomeWeights());
  EXPECT_EQ(DigestsOf(weights)[0], WeightsDigest(weights[0]));
}

// Bytes of every length around a block, each position.
TEST(MixBytesTest, OneByteThatDiffersIsSeen) {
  std::mt19937 random(11);
  for (size_t count = 0; count <= 200; ++count) {
    std::vector<uint8_t> bytes(count);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    std::set<uint64_t> seen = {MixBytes(bytes.data(), count)};
    for (uint8_t& byte : bytes) {
      byte ^= 0x10;
      EXPECT_TRUE(seen.insert(MixBytes(bytes.data(), count)).second) << count;
      byte ^= 0x10;
    }
    bytes.push_back(0);  // a zero more is not nothing
    EXPECT_TRUE(seen.insert(MixBytes(bytes.data(), count + 1)).second) << count;
  }
}

TEST(MixBytesTest, WordsThatChangePlacesAreSeen) {
  std::vector<uint64_t> words(64);
  std::mt19937_64 random(13);
  for (uint64_t& word : words) word = random();
  const size_t bytes = words.size() * sizeof(uint64_t);
  std::set<uint64_t> seen = {MixBytes(words.data(), bytes)};
  for (size_t i = 1; i < words.size(); ++i) {
    std::swap(words[0], words[i]);
    EXPECT_TRUE(seen.insert(MixBytes(words.data(), bytes)).second) << i;
    std::swap(words[0], words[i]);
  }
}

}  // namespace
}  // namespace stemma::worker
