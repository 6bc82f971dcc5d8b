// An export by several ranks is one rank's, byte for byte, and one that fails anywhere leaves nothing. Ranks are
// threads.
#include "worker/engine/rank_export.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/free_bytes.h"
#include "common/model/model_init.h"
#include "common/model/model_shard.h"
#include "tests/testing/added_tensors.h"
#include "tests/testing/disk_left.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/thread_communicator.h"
#include "tests/worker/checkpoint/saved_checkpoint.h"
#include "worker/model/weights_io.h"
#include "worker/optim/adamw.h"
#include "worker/optim/shards.h"

namespace stemma::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr absl::Duration kRankWaitsAtMost = absl::Minutes(2);
constexpr uint64_t kFileBytesMax = 64 << 20;

// File name -> content.
std::map<std::string, std::string> Contents(const fs::path& folder) {
  std::map<std::string, std::string> contents;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    contents[entry.path().filename().string()] = ReadFile(entry.path().string(), kFileBytesMax).value();
  }
  return contents;
}

// Calls a function before each call of the right rank that has the name.
class HookedRank final : public Communicator {
 public:
  HookedRank(std::unique_ptr<Communicator> right, std::string name, std::function<void()> hook)
      : Communicator(right->axis(), right->rank(), right->size()),
        right_(std::move(right)),
        name_(std::move(name)),
        hook_(std::move(hook)) {}

 private:
  StartedCall Start(const CollectiveCall& call) override {
    if (call.name == name_) hook_();
    at::Tensor words = call.output;
    const absl::Status status =
        right_->Agree(call.name, {words.data_ptr<int64_t>(), static_cast<size_t>(words.numel())});
    return {[status] { return status; }};
  }

  const std::unique_ptr<Communicator> right_;
  const std::string name_;
  const std::function<void()> hook_;
};

struct Case {
  int dp = 1;
  int tp = 1;
  at::ScalarType run_dtype = at::kFloat;
  std::optional<std::string> dtype = std::nullopt;
  v1::OptimizerResidency residency = v1::DEVICE;
  std::string name = "out";
  int pp = 1;
  bool shard = false;  // dp ranks divide parameters, too

  int ranks() const { return dp * pp * tp; }
};

using Answers = std::vector<absl::StatusOr<uint64_t>>;  // by rank

class RankExportTest : public ::testing::Test {
 protected:
  using Edit = std::function<void(int rank, ModelDirectory& source, MeshRanks& ranks)>;

  // Several files with tensors of uneven sizes, and an index.
  void SetUp() override {
    ModelConfig config =
        SyntheticModel({.hidden = 36, .layers = 3, .heads = 8, .kv_heads = 2, .head_size = 6, .ffn = 48, .vocab = 211});
    ASSERT_TRUE(WriteRandomModel(config, {.norm_std = 0.1, .max_shard_bytes = 20'000}, model_.string()).ok());
    auto directory = OpenModelDirectory(model_.string());
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_ = *directory;
    ASSERT_GE(directory_.shards.size(), 5u);
  }

  // Writes element `index` of a tensor into the model's file, which is fp32.
  void SetWeight(const std::string& name, int64_t index, float value) const {
    for (const WeightFile& shard : directory_.shards) {
      for (const safetensors::TensorEntry& t : shard.header.tensors) {
        if (t.name != name) continue;
        ASSERT_EQ(t.dtype, safetensors::Dtype::kF32);
        std::fstream file(shard.path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(t.begin) + 4 * index);
        file.write(reinterpret_cast<const char*>(&value), sizeof(value));
        file.close();
        ASSERT_FALSE(file.fail());
        return;
      }
    }
    FAIL() << "no tensor " << name;
  }

  fs::path Target(const Case& c) const { return root_ / "exports" / c.name; }
  fs::path Folder(const Case& c) const { return root_ / "exports" / (".tmp-of-" + c.name); }

  Answers Export(
      const Case& c, const Edit& edit = [](int, ModelDirectory&, MeshRanks&) {}) const {
    Answers answers(static_cast<size_t>(c.ranks()), absl::InternalError("not run"));
    const v1::Mesh mesh = MakeMesh(
        {.dp = static_cast<uint32_t>(c.dp), .pp = static_cast<uint32_t>(c.pp), .tp = static_cast<uint32_t>(c.tp)});
    const auto shard_of = [&](int tp_rank, int pp_rank) {
      const ShardPlace place = {.tp_rank = tp_rank, .tp_size = c.tp, .pp_rank = pp_rank, .pp_size = c.pp};
      return MakeModelShard(directory_.config, place).value();
    };
    std::vector<MeshRanks> meshed = MakeThreadMesh(mesh, shard_of(0, 0).kv_replicas(), kRankWaitsAtMost);
    fs::create_directories(Folder(c));  // as the server does
    std::vector<std::thread> threads;
    for (int rank = 0; rank < c.ranks(); ++rank) {
      const auto i = static_cast<size_t>(rank);
      threads.emplace_back([&, rank, i, ranks = std::move(meshed[i])]() mutable {
        at::set_num_threads(1);
        ModelDirectory source = directory_;
        const int dp_rank = ranks.data->rank();
        const auto weights = LoadWeights(source, shard_of(ranks.tp->rank(), ranks.pp->rank()), c.run_dtype, at::kCPU,
                                         {c.residency, {dp_rank, c.dp, c.shard}});
        edit(rank, source, ranks);
        if (!weights.ok() || ranks.data == nullptr) return;
        const OptimizerShards shards = ShardsOf(*weights, c.dp);
        answers[i] = ExportOnRanks(*weights, source, {Target(c).string(), Folder(c).string(), c.dtype},
                                   shards.owned(dp_rank), ranks);
      });
    }
    for (std::thread& thread : threads) thread.join();
    fs::remove_all(Folder(c));  // as the server does of what failed before rank 0 had it
    return answers;
  }

  // Every rank says no, the guilty one why, and nothing is there but what was.
  void ExpectNothing(const Case& c, const Answers& answers, int guilty, absl::StatusCode code, const char* why,
                     const std::vector<std::string>& there = {}) const {
    for (int rank = 0; rank < c.ranks(); ++rank) {
      const auto& answer = answers[static_cast<size_t>(rank)];
      if (rank == guilty) {
        EXPECT_THAT(answer, StatusIs(code, HasSubstr(why))) << "rank " << rank;
      } else {
        EXPECT_THAT(answer, StatusIs(absl::StatusCode::kAborted, HasSubstr("another rank"))) << "rank " << rank;
      }
    }
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(root_ / "exports")) found.push_back(entry.path().filename());
    EXPECT_EQ(found, there);
  }

  const TempFolder folder_;
  const fs::path root_ = folder_.path(), model_ = root_ / "model";
  ModelDirectory directory_;
};

// Every mesh writes the bytes of one rank, and every byte once.
TEST_F(RankExportTest, HasTheBytesOfOneRanks) {
  const std::optional<std::string> dtypes[] = {std::nullopt, "float32", "float64", "bfloat16", "float16"};
  const std::pair<int, int> meshes[] = {{2, 1}, {1, 2}, {3, 1}, {2, 2}, {1, 4}, {4, 1}, {3, 2}, {2, 4}, {1, 8}, {5, 1}};
  int number = 0;
  for (const at::ScalarType run_dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    for (const auto& dtype : dtypes) {
      const std::string alone = "alone" + std::to_string(++number);
      const Answers one = Export({.run_dtype = run_dtype, .dtype = dtype, .name = alone});
      ASSERT_THAT(one[0], IsOk());
      const auto expected = Contents(root_ / "exports" / alone);
      for (const int turn : {0, 1}) {
        const auto [dp, tp] = meshes[static_cast<size_t>(2 * number + turn) % std::size(meshes)];
        Case c{dp, tp, run_dtype, dtype, number % 2 == 0 ? v1::HOST : v1::DEVICE};
        c.name = "mesh" + std::to_string(number) + "-" + std::to_string(turn);
        c.pp = 1 + (number + turn) % 3;
        c.shard = dp > 1 && number % 3 > 0;
        uint64_t bytes = 0;
        for (const auto& answer : Export(c)) {
          ASSERT_THAT(answer, IsOk());
          EXPECT_GT(*answer, 0u) << "all ranks write";
          bytes += *answer;
        }
        EXPECT_EQ(bytes, *one[0]) << "what the server adds up";
        EXPECT_TRUE(Contents(Target(c)) == expected)
            << "dp=" << dp << ", pp=" << c.pp << ", tp=" << tp << ", number " << number;
      }
    }
  }
  EXPECT_EQ(Contents(root_ / "exports" / "alone6"), Contents(model_)) << "fp32 as loaded, in an fp32 run";
  EXPECT_EQ(Contents(root_ / "exports" / "alone1"), Contents(model_)) << "by its masters in a bf16 run";
}

// What old programs leave: a tied head that is stored as well, and tensors that the model does not use.
TEST_F(RankExportTest, WhatIsCopiedAndWhatIsStoredTwice) {
  fs::remove_all(model_);
  ModelConfig config =
      SyntheticModel({.hidden = 36, .layers = 2, .heads = 4, .kv_heads = 2, .head_size = 4, .ffn = 8, .vocab = 101});
  config.tie_word_embeddings = true;
  ASSERT_THAT(WriteRandomModel(config, {}, model_.string()), IsOk());
  const std::string file = model_ / "model.safetensors";
  AddTensor(file, {"model.layers.0.self_attn.rotary_emb.inv_freq", safetensors::Dtype::kF32, {3}});
  AddTiedHead(file, safetensors::Dtype::kBF16);
  directory_ = OpenModelDirectory(model_.string()).value();
  for (const std::optional<std::string>& dtype :
       {std::optional<std::string>(), std::optional<std::string>("float16")}) {
    const std::string alone = "alone" + dtype.value_or("");
    const Answers one = Export({.run_dtype = at::kBFloat16, .dtype = dtype, .name = alone});
    ASSERT_THAT(one[0], IsOk());
    const auto expected = Contents(root_ / "exports" / alone);
    for (const auto& [dp, tp, pp] : {std::tuple(2, 2, 1), {1, 4, 2}, {3, 1, 1}, {2, 1, 2}}) {
      Case c{dp, tp, at::kBFloat16, dtype};
      c.pp = pp;
      c.shard = dp == 3 || pp == 2;
      c.name = absl::StrCat("mesh", dp, tp, pp, dtype.value_or(""));
      uint64_t bytes = 0;
      for (const auto& answer : Export(c)) bytes += answer.value();
      EXPECT_EQ(bytes, *one[0]);
      EXPECT_TRUE(Contents(Target(c)) == expected) << c.name;
    }
    // The head that is stored is the embedding, trained.
    const std::string path = root_ / "exports" / alone / "model.safetensors";
    const std::string content = ReadFile(path, kFileBytesMax).value();
    const safetensors::Header header = safetensors::ReadHeader(path).value();
    const safetensors::TensorEntry* embedding = nullptr;
    for (const safetensors::TensorEntry& t : header.tensors) {
      if (t.name == "model.embed_tokens.weight") embedding = &t;
      if (t.name != "lm_head.weight" || !dtype.has_value()) continue;
      ASSERT_NE(embedding, nullptr);
      EXPECT_EQ(content.substr(t.begin, t.end - t.begin),
                content.substr(embedding->begin, embedding->end - embedding->begin));
    }
  }
}

// An embedding of more elements than are converted at a time.
TEST_F(RankExportTest, ALargeTensorIsWrittenInParts) {
  fs::remove_all(model_);
  ModelConfig config = SyntheticModel(
      {.hidden = 512, .layers = 1, .heads = 2, .kv_heads = 2, .head_size = 4, .ffn = 4, .vocab = 16'400});
  config.tie_word_embeddings = true;
  ASSERT_THAT(WriteRandomModel(config, {}, model_.string()), IsOk());
  directory_ = OpenModelDirectory(model_.string()).value();
  const Case c{1, 1, at::kBFloat16};
  ASSERT_THAT(Export(c)[0], IsOk());
  EXPECT_TRUE(Contents(Target(c)) == Contents(model_)) << "megabytes, which nobody wants printed";
}

TEST_F(RankExportTest, MoreRanksThanElementsToWrite) {
  fs::remove_all(model_);
  ASSERT_TRUE(
      WriteRandomModel(
          SyntheticModel({.hidden = 4, .layers = 1, .heads = 2, .kv_heads = 1, .head_size = 2, .ffn = 2, .vocab = 6}),
          {}, model_.string())
          .ok());
  directory_ = OpenModelDirectory(model_.string()).value();
  const Case c{16, 2, at::kBFloat16};
  bool nothing = false;
  for (const auto& answer : Export(c)) {
    ASSERT_THAT(answer, IsOk());
    nothing |= *answer == 0;
  }
  EXPECT_TRUE(nothing);
  EXPECT_EQ(Contents(Target(c)), Contents(model_));
}

TEST_F(RankExportTest, ATargetThatExistsStays) {
  const Case c{3, 1, at::kBFloat16};
  fs::create_directories(Target(c) / "kept");
  ExpectNothing(c, Export(c), 0, absl::StatusCode::kAlreadyExists, "exists: choose another name", {"out"});
  EXPECT_TRUE(fs::exists(Target(c) / "kept"));
}

TEST_F(RankExportTest, ARankThatCannotWriteIsEveryRanksAnswer) {
  for (const int guilty : {0, 1, 2, 3}) {
    const Case c{2, 2, at::kBFloat16};
    const Answers answers = Export(c, [&](int rank, ModelDirectory& source, MeshRanks&) {
      if (rank == guilty) source.shards.back().file_name = source.shards.front().file_name = "no/such/folder";
    });
    ExpectNothing(c, answers, guilty, absl::StatusCode::kNotFound, "no/such/folder");
  }
  EXPECT_TRUE(Export({3, 1, at::kBFloat16})[0].ok()) << "the next one is made";
}

// A row of the journal beside it that finds no room ends the server.
TEST_F(RankExportTest, TheLastOfTheDiskIsLeftForTheJournal) {
  const FreeBytesGuard guard;
  const Case c{3, 1, at::kFloat};
  SetFreeBytes(kLeftForJournalBytes);
  ExpectNothing(c, Export(c), 0, absl::StatusCode::kResourceExhausted, ".json: No space left");
  SetFreeBytes(-1);
  const Answers answers = Export(c, [&](int rank, ModelDirectory&, MeshRanks& ranks) {
    if (rank != 0) return;
    ranks.data =
        std::make_unique<HookedRank>(std::move(ranks.data), "export_begun", [] { SetFreeBytes(kLeftForJournalBytes); });
  });
  for (const auto& answer : answers) {
    EXPECT_TRUE(HasReason(answer.status(), Reason::kDiskFull)) << answer.status();
    EXPECT_THAT(answer, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(".safetensors: No space left")));
  }
  EXPECT_TRUE(fs::is_empty(root_ / "exports"));
}

// The folder goes while the ranks write: what the second rank meets, the third too.
TEST_F(RankExportTest, AFolderThatVanishesIsAnAnswer) {
  const Case c{3, 1, at::kFloat};
  const Answers answers = Export(c, [&](int rank, ModelDirectory&, MeshRanks& ranks) {
    if (rank != 0) return;
    ranks.data = std::make_unique<HookedRank>(std::move(ranks.data), "export_begun", [&] {
      for (const auto& entry : fs::directory_iterator(root_ / "exports")) fs::remove_all(entry.path());
    });
  });
  for (const auto& answer : answers) EXPECT_THAT(answer, StatusIs(absl::StatusCode::kNotFound, HasSubstr("")));
  EXPECT_TRUE(fs::is_empty(root_ / "exports"));
}

// The server takes the folder away when it gives up ranks: those that were only stopped, and go on, write nothing.
TEST_F(RankExportTest, RanksThatWereGivenUpMakeNoFolder) {
  const Case c{3, 1, at::kFloat};
  const Answers answers = Export(c, [&](int rank, ModelDirectory&, MeshRanks&) {
    if (rank == 0) fs::rename(Folder(c), root_ / "taken");
  });
  ExpectNothing(c, answers, 0, absl::StatusCode::kNotFound, "is not there");
}

// Another writer takes the name while the ranks write: its directory stays, ours goes.
TEST_F(RankExportTest, ATargetThatAppearsStays) {
  const Case c{3, 1, at::kFloat};
  const Answers answers = Export(c, [&](int rank, ModelDirectory&, MeshRanks& ranks) {
    if (rank != 2) return;
    ranks.data = std::make_unique<HookedRank>(std::move(ranks.data), "export_written",
                                              [&] { fs::create_directories(Target(c) / "theirs"); });
  });
  ExpectNothing(c, answers, 0, absl::StatusCode::kAlreadyExists, "out", {"out"});
  EXPECT_TRUE(fs::exists(Target(c) / "theirs"));
}

TEST_F(RankExportTest, AnUnknownDtypeIsRefused) {
  const Case c{2, 1, at::kFloat, "half"};
  for (const auto& answer : Export(c)) EXPECT_THAT(answer, Invalid("dtype: 'half'"));
  EXPECT_FALSE(fs::exists(Target(c)));
}

// fp16 ends at 65504: what is above is named, and no file has inf in its place.
TEST_F(RankExportTest, AWeightThatIsNotFiniteInTheFilesDtypeIsNamed) {
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  const std::string says = absl::StrCat("tensor \"", name,
                                        "\": element [2, 30] is -70000, which is not finite as F16; export as bfloat16 "
                                        "or float32");
  constexpr int64_t kIndex = 2 * 48 + 30;  // row 2; with tp=2 the second rank has the column
  SetWeight(name, kIndex, -7e4f);
  for (const auto& [dp, tp] : {std::pair(1, 1), {2, 2}}) {
    const Case c{dp, tp, at::kFloat, "float16"};
    const Answers answers = Export(c);
    const auto guilty = std::find_if(answers.begin(), answers.end(),
                                     [](const auto& answer) { return absl::IsFailedPrecondition(answer.status()); });
    ASSERT_NE(guilty, answers.end());
    ExpectNothing(c, answers, static_cast<int>(guilty - answers.begin()), absl::StatusCode::kFailedPrecondition,
                  says.c_str());
  }
  for (const char* dtype : {"float32", "bfloat16"}) {
    EXPECT_THAT(Export({1, 1, at::kFloat, dtype, v1::DEVICE, dtype})[0], IsOk());
  }
  SetWeight(name, kIndex, 65504);
  EXPECT_THAT(Export({1, 1, at::kFloat, "float16"})[0], IsOk());
}

TEST_F(RankExportTest, ARankThatHasGoneEndsTheGeneration) {
  const Case c{3, 1, at::kBFloat16};
  const Answers answers = Export(c, [&](int rank, ModelDirectory&, MeshRanks& ranks) {
    if (rank == 1) ranks = {};
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(answers[static_cast<size_t>(rank)], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
  }
  EXPECT_FALSE(fs::exists(Target(c)));
}

}  // namespace
}  // namespace stemma::testing
