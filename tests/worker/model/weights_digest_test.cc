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

#include "tests/testing/hf_slices.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/thread_communicator.h"
#include "tests/testing/weights_digest.h"
#include "tests/testing/whole_model.h"
#include "worker/parallel/local_communicator.h"

namespace stemma::worker {
namespace {

using testing::MakeThreadMesh;

using testing::WeightsDigest;
using testing::WholeModel;

Weights SomeWeights(at::ScalarType dtype = at::kFloat, int64_t layers = 2, bool tied = false) {
  ModelConfig config =
      testing::SyntheticModel({.hidden = 24, .layers = layers, .head_size = 6, .ffn = 20, .vocab = 30});
  config.tie_word_embeddings = tied;
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

TEST(WeightsDigestTest, PlaceAndDtypeCount) {
  const std::string digest = WeightsDigest(SomeWeights());
  Weights exchanged = SomeWeights();
  Parameter &a = exchanged.at(exchanged.layers[0][TensorRole::kNorm1]),
            &b = exchanged.at(exchanged.layers[1][TensorRole::kNorm1]);
  std::swap(a.weight, b.weight);
  EXPECT_NE(WeightsDigest(exchanged), digest);
  EXPECT_NE(WeightsDigest(SomeWeights(at::kDouble)), digest);
  EXPECT_NE(WeightsDigest(SomeWeights(at::kFloat, /*layers=*/1)), digest);
}

// Journals and checkpoints of older servers hold digests.
TEST(WeightsDigestTest, IsWhatItWas) {
  EXPECT_EQ(WeightsDigest(SomeWeights()), "2:f87c97357ddbaa1b2a9052167ea0a36cb5fbcd971ac33b7e6136fa0046e253");
}

// Names are the model's, in its order: ranks that hold other tensors add theirs in their places.
TEST(WeightsDigestTest, ATensorThatIsNoneOfTheModelsIsABug) {
  Weights renamed = SomeWeights();
  renamed.hf_tensors[0].name.back() = 'x';
  EXPECT_DEATH(WeightsDigest(renamed), "is none of the model's tensors");
}

// Elements that change places within a row, and rows that do, within a tensor and from one fused tensor to the next.
TEST(WeightsDigestTest, ElementsThatChangePlacesAreSeen) {
  const Weights weights = SomeWeights();
  const std::string digest = WeightsDigest(weights);
  std::mt19937 random(9);
  for (const TensorRole role : {TensorRole::kQkv, TensorRole::kDown, TensorRole::kNorm1}) {
    const at::Tensor weight = weights.at(weights.layers[1][role]).weight;
    const at::Tensor before = weight.clone();
    for (int dim = 0; dim < weight.dim(); ++dim) {
      weight.copy_(before.roll(1, dim));
      EXPECT_NE(WeightsDigest(weights), digest) << "dimension " << dim;
    }
    for (int i = 0; i < 20; ++i) {
      const at::Tensor flat = weight.copy_(before).view(-1);
      const auto x = static_cast<int64_t>(random() % static_cast<size_t>(flat.numel()));
      const int64_t y = (x + 1 + static_cast<int64_t>(random() % static_cast<size_t>(flat.numel() - 1))) % flat.numel();
      const at::Tensor kept = flat[x].clone();
      flat[x].copy_(flat[y]);
      flat[y].copy_(kept);
      EXPECT_NE(WeightsDigest(weights), digest) << x << " and " << y;
    }
    weight.copy_(before);
  }
  EXPECT_EQ(WeightsDigest(weights), digest);
}

// Digests of the ranks of one copy, each with its own weights, as all of them tell.
std::vector<std::string> DigestsOf(const std::vector<Weights>& weights) {
  const ShardPlace& place = weights.front().shard.place;
  const auto copies = static_cast<uint32_t>(weights.size()) / static_cast<uint32_t>(place.pp_size * place.tp_size);
  const v1::Mesh mesh =
      MakeMesh({.dp = copies, .pp = static_cast<uint32_t>(place.pp_size), .tp = static_cast<uint32_t>(place.tp_size)});
  const std::vector<MeshRanks> ranks = MakeThreadMesh(mesh, weights.front().shard.kv_replicas(), absl::Minutes(2));
  std::vector<std::string> digests(weights.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < weights.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const MeshRanks& own = ranks[rank];
      digests[rank] = MeshDigest(weights[rank], ComposedKernels(), {*own.tp, *own.pp, *own.data}).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return digests;
}

// The boxes that each of so many ranks has of the whole weights, stage by stage; with `dp` above 1, of sharded
// parameters the part that it owns.
std::vector<Weights> PartsOf(const Weights& whole, int64_t tp, int64_t pp = 1, int64_t dp = 1) {
  std::vector<Weights> parts;
  for (int64_t rank = 0; rank < tp * pp * dp; ++rank) {
    const ShardPlace place = {.tp_rank = rank % tp, .tp_size = tp, .pp_rank = rank / tp % pp, .pp_size = pp};
    parts.push_back(MakeWeights(*MakeModelShard(whole.config, place), whole.run_dtype, at::kCPU, Gradients::kMade,
                                {rank / (tp * pp), dp, /*shard_parameters=*/dp > 1}));
    for (const HfTensor& tensor : parts.back().hf_tensors) {
      const HfTensor& from = testing::HfTensorOf(whole, tensor.name);
      at::Tensor box = whole.at(from.parameter)
                           .weight.slice(0, from.row_begin + tensor.box.row_begin, from.row_begin + tensor.box.row_end);
      if (box.dim() > 1) box = box.slice(1, tensor.box.column_begin, tensor.box.column_end);
      parts.back().StoreElements(tensor.parameter, tensor.row_begin * tensor.box.columns(), box.reshape({-1}));
    }
  }
  return parts;
}

// So a run goes on, and a checkpoint is loaded, on another mesh.
TEST(MeshDigestTest, IsTheModelsOnEveryMesh) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Weights whole = SomeWeights(dtype, /*layers=*/3, /*tied=*/dtype == at::kFloat);
    for (const int64_t tp : {1, 2, 4}) {  // of two K/V heads, four ranks hold each twice
      for (int64_t pp = 1; pp <= whole.config.num_layers; ++pp) {
        for (const int64_t dp : {1, 3}) {
          for (const std::string& digest : DigestsOf(PartsOf(whole, tp, pp, dp))) {
            EXPECT_EQ(digest, WeightsDigest(whole)) << "tp " << tp << ", pp " << pp << ", dp " << dp;
          }
        }
      }
    }
  }
}

TEST(MeshDigestTest, ABitOfAnyRanksPartChangesIt) {
  const std::vector<Weights> parts = PartsOf(SomeWeights(), 2, 2);
  std::set<std::string> seen = {DigestsOf(parts)[0]};
  for (const Weights& part : parts) {
    for (const HfTensor& tensor : part.hf_tensors) {
      if (!tensor.counts_in_norm) continue;  // the other rank has it too, and tells it
      FlipBit(part.at(tensor.parameter).weight.slice(0, tensor.row_begin, tensor.row_end), 3);
      EXPECT_TRUE(seen.insert(DigestsOf(parts)[1]).second) << tensor.name;
      FlipBit(part.at(tensor.parameter).weight.slice(0, tensor.row_begin, tensor.row_end), 3);
    }
  }
}

// Norms under tensor parallelism, K/V heads that several ranks hold, a tied embedding on the first and the last stage.
TEST(MeshDigestTest, RanksThatHoldOneBoxWithOtherBitsTellEachItsOwn) {
  for (const int64_t dp : {1, 2}) {  // 2: each rank has a part of it
    const std::vector<Weights> parts = PartsOf(SomeWeights(at::kFloat, /*layers=*/3, /*tied=*/true), 4, 2, dp);
    const auto in_model = static_cast<size_t>(4 * 2);
    std::set<std::string> kinds;
    for (size_t rank = 0; rank < parts.size(); rank += 3) {
      for (const HfTensor& tensor : parts[rank].hf_tensors) {
        if (tensor.counts_in_norm) continue;
        const Parameter& p = parts[rank].at(tensor.parameter);
        const int64_t first = tensor.row_begin * tensor.box.columns();
        if (dp > 1 && (first < p.state_begin || first >= p.state_begin + p.weight_shard.numel())) continue;
        FlipBit(p.WeightElements(first, 1), 0);
        const std::vector<std::string> digests = DigestsOf(parts);
        EXPECT_EQ(std::set<std::string>(digests.begin(), digests.end()).size(), in_model) << tensor.name;
        FlipBit(p.WeightElements(first, 1), 0);
        kinds.insert(absl::StrCat(tensor.partial_over_tp, tensor.partial_over_kv_replicas,
                                  tensor.partial_over_first_and_last_stage));
      }
    }
    EXPECT_EQ(kinds, (std::set<std::string>{"100", "010", "001"}));
  }
}

}  // namespace
}  // namespace stemma::worker
