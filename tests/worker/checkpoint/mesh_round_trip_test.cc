// A checkpoint of one mesh is a checkpoint of every other: drawn models, saved by all ranks of a drawn mesh and loaded
// by all of another one. What a state must hold is known of each element by its name and place alone.
#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/split_mix.h"
#include "common/model/model_shard.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/checkpoint/saved_checkpoint.h"
#include "worker/checkpoint/checkpoint_loader.h"
#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/model/weights_io.h"
#include "worker/optim/shards.h"

namespace stemma::testing {
namespace {

struct Mesh {
  int64_t dp = 1, tp = 1, pp = 1, ep = 1;
  bool shard = false;  // its dp ranks divide parameters, too
  int64_t ranks() const { return dp * pp * tp; }
  int64_t dp_rank(int64_t rank) const { return rank / (pp * tp); }
};

// A number that only this element of this state has, or nearly so; exact in fp32.
double NumberOf(const std::string& state, const std::string& tensor, int64_t element) {
  const uint64_t seed = std::hash<std::string>()(state + " " + tensor);
  return static_cast<double>(SplitMix64(seed + static_cast<uint64_t>(element)).Next() >> 41) + 1;
}

class MeshRoundTripTest : public ::testing::TestWithParam<int> {
 protected:
  void Draw() {
    Draws draw(static_cast<uint32_t>(GetParam()));
    // Both ways between one copy of the model and several ranks that hold it together, and between two such.
    const int64_t tps[][2] = {{1, 2}, {2, 1}, {2, 4}, {4, 2}, {3, 1}, {1, 4}, {4, 4}, {1, 3}};
    const auto& [from_tp, to_tp] = tps[GetParam() % 8];
    from_ = {draw(1, 3), from_tp};
    to_ = {draw(1, 3), to_tp};
    config_ = DrawModel(draw, std::max(from_tp, to_tp));
    from_.ep = DrawEp(draw, config_, from_tp);
    to_.ep = DrawEp(draw, config_, to_tp);
    from_.shard = draw(0, 1) == 1;
    to_.shard = draw(0, 1) == 1;
    from_.pp = draw(1, static_cast<int>(std::min<int64_t>(3, config_.num_layers)));
    to_.pp = draw(1, static_cast<int>(std::min<int64_t>(3, config_.num_layers)));
    ASSERT_THAT(WriteRandomModel(config_, DrawInit(draw), folder_ / "model"), IsOk());
    auto directory = OpenModelDirectory(folder_ / "model");
    ASSERT_THAT(directory, IsOk());
    directory_ = *directory;
    const at::ScalarType dtypes[] = {at::kFloat, at::kBFloat16, at::kDouble};
    run_dtype_ = dtypes[draw(0, 2)];
    for (const TensorSpec& spec : ModelTensors(config_)) {
      columns_[spec.name] = spec.shape.size() > 1 ? spec.shape[1] : 1;
    }
  }

  ModelShard ShardOf(const Mesh& mesh, int64_t rank) const {
    const ShardPlace place = {.tp_rank = rank % mesh.tp,
                              .tp_size = mesh.tp,
                              .pp_rank = rank / mesh.tp % mesh.pp,
                              .pp_size = mesh.pp,
                              .ep_size = mesh.ep};
    return MakeModelShard(config_, place).value();
  }
  static StateOptions StatesOf(const Mesh& mesh, int64_t rank) {
    return {rank % 2 == 0 ? v1::DEVICE : v1::HOST, {mesh.dp_rank(rank), mesh.dp, mesh.shard}};
  }

  // Calls fn(values, first, name, element) for what a rank has of a state: host tensors, flat, of one row of a box, and
  // which element of the whole tensor the first of them is.
  template <typename Function>
  void ForEachRow(const Weights& weights, at::Tensor Parameter::*state, const Function& fn) const {
    for (const HfTensor& tensor : weights.hf_tensors) {
      const Parameter& p = weights.at(tensor.parameter);
      const bool is_weight = (p.*state).is_same(p.weight);
      const at::Tensor held = is_weight && p.is_sharded() ? p.weight_shard : p.*state;
      const int64_t held_begin = is_weight && !p.is_sharded() ? 0 : p.state_begin;
      const int64_t held_end = held_begin + held.numel();
      for (int64_t row = 0; row < tensor.box.rows(); ++row) {
        const int64_t first = (tensor.row_begin + row) * tensor.box.columns();
        const int64_t begin = std::max(first, held_begin), end = std::min(first + tensor.box.columns(), held_end);
        if (begin >= end) continue;
        at::Tensor values = Parameter::Elements(held, begin - held_begin, end - begin);
        fn(values, tensor.name,
           (tensor.box.row_begin + row) * columns_.at(tensor.name) + tensor.box.column_begin + begin - first);
      }
    }
  }
  at::Tensor Expected(const std::string& state, const std::string& name, int64_t element,
                      const at::Tensor& like) const {
    std::vector<double> numbers;
    for (int64_t i = 0; i < like.numel(); ++i) numbers.push_back(NumberOf(state, name, element + i));
    return at::from_blob(numbers.data(), like.sizes(), at::kDouble).to(like.scalar_type(), false, /*copy=*/true);
  }

  using Member = std::pair<const char*, at::Tensor Parameter::*>;
  static constexpr Member kStates[] = {
      {"master", &Parameter::master}, {"exp_avg", &Parameter::exp_avg}, {"exp_avg_sq", &Parameter::exp_avg_sq}};

  // Saves by every rank, one after the other: none waits for another.
  void Save(const Mesh& mesh, const std::string& name, std::vector<Weights> weights) const {
    const std::string path = folder_ / "checkpoints/" + name;
    std::filesystem::create_directories(path + "/optim");
    CheckpointParts parts;
    for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
      const Weights& own = weights[static_cast<size_t>(rank)];
      const OptimizerShards shards = ShardsOf(own, mesh.dp);
      CheckpointSaver saver(own, directory_, shards.owned(mesh.dp_rank(rank)),
                            {.checkpoints = folder_ / "checkpoints", .rank = static_cast<uint32_t>(rank)});
      internal::v1::Save save;
      save.set_folder(name);
      SavedAnswers answers;
      ASSERT_THAT(saver.Save(save, "digest", answers.Functions()), IsOk());
      const internal::v1::SaveDone done = answers.WaitForDone();
      ASSERT_FALSE(done.has_failure()) << done.failure().ShortDebugString();
      EXPECT_EQ(done.weights_digest(), "digest");
      for (const internal::v1::CheckpointPart& part : done.parts()) {
        EXPECT_EQ(part.rank(), static_cast<uint32_t>(rank));
        parts.push_back(part);
      }
    }
    ExpectWholeParts(path, parts);
  }

  // The state of every rank, before any file has it.
  std::vector<Weights> Made(const Mesh& mesh) const {
    std::vector<Weights> made;
    for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
      made.push_back(LoadWeights(directory_, ShardOf(mesh, rank), run_dtype_, at::kCPU, StatesOf(mesh, rank)).value());
      for (const auto& [state, member] : kStates) {
        ForEachRow(made.back(), member,
                   [&, name = state](at::Tensor& values, const std::string& tensor, int64_t element) {
                     values.copy_(Expected(name, tensor, element, values));
                   });
      }
    }
    return made;
  }

  // Loads it by every rank of a mesh, and checks each element that a rank has.
  std::vector<Weights> Loaded(const Mesh& mesh, const std::string& name) const {
    std::vector<Weights> loaded;
    for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
      auto weights = LoadCheckpoint(folder_ / "checkpoints/" + name, ShardOf(mesh, rank), run_dtype_, at::kCPU,
                                    StatesOf(mesh, rank));
      EXPECT_THAT(weights, IsOk());
      loaded.push_back(*std::move(weights));
      for (const auto& [state, member] : kStates) {
        ForEachRow(loaded.back(), member,
                   [&, kind = state](const at::Tensor& values, const std::string& tensor, int64_t element) {
                     EXPECT_TRUE(values.equal(Expected(kind, tensor, element, values)))
                         << kind << " of " << tensor << " from element " << element << " on, rank " << rank;
                   });
      }
      // The weights that a rank holds: all, whoever owns their masters, or where they are sharded its own.
      ForEachRow(loaded.back(), &Parameter::weight,
                 [&](const at::Tensor& values, const std::string& tensor, int64_t element) {
                   const at::Tensor exact = Expected("master", tensor, element, values.to(at::kDouble));
                   EXPECT_TRUE(values.equal(exact.to(loaded.back().accumulate_dtype).to(run_dtype_))) << tensor;
                 });
    }
    return loaded;
  }

  const TempFolder folder_;
  Mesh from_, to_;
  ModelConfig config_;
  ModelDirectory directory_;
  at::ScalarType run_dtype_ = at::kFloat;
  std::map<std::string, int64_t> columns_;  // of each tensor
};

TEST_P(MeshRoundTripTest, FilesAndStatesDoNotDependOnTheMesh) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Draw();
  Save(from_, "from", Made(from_));
  Save({}, "alone", Made({}));
  const auto files = ContentsOf(folder_ / "checkpoints/from");
  EXPECT_TRUE(ContentsOf(folder_ / "checkpoints/alone") == files) << "megabytes, which nobody wants printed";
  Save(to_, "to", Loaded(to_, "from"));
  EXPECT_TRUE(ContentsOf(folder_ / "checkpoints/to") == files);
}

INSTANTIATE_TEST_SUITE_P(Random, MeshRoundTripTest, ::testing::Range(1, 25));

}  // namespace
}  // namespace stemma::testing
