// An export by several ranks is one rank's, byte for byte, and one that fails anywhere leaves nothing. Ranks are
// threads.
#include "worker/engine/rank_export.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/file.h"
#include "common/model/model_init.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/synthetic.h"
#include "worker/model/weights_io.h"
#include "worker/parallel/thread_communicator.h"

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
    const absl::Status status = Make(call);
    return {[status] { return status; }};
  }
  absl::Status Make(const CollectiveCall& call) {
    at::Tensor output = call.output;
    switch (call.kind) {
      case CollectiveKind::kBroadcast:
        return right_->Broadcast(call.name, output, call.peer);
      case CollectiveKind::kSend:
        return right_->Send(call.name, call.input, call.peer);
      case CollectiveKind::kReceive:
        return right_->Receive(call.name, output, call.peer);
      default:
        return right_->Agree(call.name, {output.data_ptr<int64_t>(), static_cast<size_t>(output.numel())});
    }
  }

  const std::unique_ptr<Communicator> right_;
  const std::string name_;
  const std::function<void()> hook_;
};

struct Case {
  int ranks = 1;
  at::ScalarType run_dtype = at::kFloat;
  std::optional<std::string> dtype = std::nullopt;
  v1::OptimizerResidency residency = v1::DEVICE;
  std::string name = "out";
};

struct Exported {
  std::vector<absl::StatusOr<uint64_t>> answers;  // by rank
  int64_t master_bytes = 0;                       // of all ranks, counted where they leave and where they arrive
};

class RankExportTest : public ::testing::Test {
 protected:
  using Edit = std::function<void(int rank, ModelDirectory& source, std::unique_ptr<Communicator>& dp)>;

  // Several files with tensors of uneven sizes, and an index.
  void SetUp() override {
    ModelConfig config = SyntheticModel(
        {.hidden = 36, .layers = 3, .heads = 3, .kv_heads = 1, .head_size = 12, .ffn = 50, .vocab = 211});
    ASSERT_TRUE(WriteRandomModel(config, {.norm_std = 0.1, .max_shard_bytes = 20'000}, model_.string()).ok());
    auto directory = OpenModelDirectory(model_.string());
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_ = *directory;
    ASSERT_GE(directory_.shards.size(), 5u);
  }

  fs::path Target(const Case& c) const { return root_ / "exports" / c.name; }

  Exported Export(
      const Case& c, const Edit& edit = [](int, ModelDirectory&, std::unique_ptr<Communicator>&) {}) const {
    Exported exported;
    exported.answers.assign(static_cast<size_t>(c.ranks), absl::InternalError("not run"));
    std::vector<std::unique_ptr<Communicator>> dps = MakeThreadRanks(c.ranks, kRankWaitsAtMost);
    std::vector<std::map<std::string, CollectiveTotals>> totals(dps.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < c.ranks; ++rank) {
      const auto i = static_cast<size_t>(rank);
      threads.emplace_back([&, rank, i, dp = std::move(dps[i])]() mutable {
        at::set_num_threads(1);
        ModelDirectory source = directory_;
        const auto weights =
            LoadWeights(source, WholeModel(source.config), c.run_dtype, at::kCPU, {c.residency, rank, c.ranks});
        edit(rank, source, dp);
        if (!weights.ok() || dp == nullptr) return;
        const OptimizerShards shards(ElementsOf(weights->parameters), c.ranks);
        exported.answers[i] = ExportOnRanks(*weights, source, {Target(c).string(), c.dtype}, shards, *dp);
        totals[i] = dp->stats().Read();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& total : totals) {
      if (const auto it = total.find("masters"); it != total.end()) exported.master_bytes += it->second.bytes;
    }
    return exported;
  }

  // Every rank says no, the guilty one why, and nothing is there but what was.
  void ExpectNothing(const Case& c, const Exported& exported, int guilty, absl::StatusCode code, const char* why,
                     const std::vector<std::string>& there = {}) const {
    for (int rank = 0; rank < c.ranks; ++rank) {
      const auto& answer = exported.answers[static_cast<size_t>(rank)];
      if (rank == guilty) {
        EXPECT_THAT(answer, StatusIs(code, HasSubstr(why))) << "rank " << rank;
      } else {
        EXPECT_THAT(answer, StatusIs(absl::StatusCode::kAborted, HasSubstr("another rank"))) << "rank " << rank;
      }
    }
    std::vector<std::string> found;
    if (fs::exists(root_ / "exports")) {
      for (const auto& entry : fs::directory_iterator(root_ / "exports")) found.push_back(entry.path().filename());
    }
    EXPECT_EQ(found, there);
  }

  const TempFolder folder_;
  const fs::path root_ = folder_.path(), model_ = root_ / "model";
  ModelDirectory directory_;
};

// The owner of a master is drawn by its place, the writer of a file by its number: all pairs occur.
TEST_F(RankExportTest, HasTheBytesOfOneRanks) {
  const std::optional<std::string> dtypes[] = {std::nullopt, "float32", "float64", "bfloat16", "float16"};
  int number = 0;
  for (const at::ScalarType run_dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    for (const auto& dtype : dtypes) {
      const std::string alone = "alone" + std::to_string(++number);
      const Exported one = Export({.run_dtype = run_dtype, .dtype = dtype, .name = alone});
      ASSERT_TRUE(one.answers[0].ok()) << one.answers[0].status();
      const auto expected = Contents(root_ / "exports" / alone);
      const int ranks = 2 + number % 3;
      const Case c{ranks, run_dtype, dtype, number % 2 == 0 ? v1::HOST : v1::DEVICE, "ranks" + std::to_string(number)};
      const Exported several = Export(c);
      uint64_t bytes = 0;
      for (const auto& answer : several.answers) {
        ASSERT_TRUE(answer.ok()) << answer.status();
        EXPECT_GT(*answer, 0u) << "files are dealt to all of " << ranks;
        bytes += *answer;
      }
      EXPECT_EQ(bytes, *one.answers[0]);
      EXPECT_TRUE(Contents(Target(c)) == expected) << "run " << number;
      EXPECT_EQ(several.master_bytes > 0, run_dtype == at::kBFloat16) << "only masters in parts travel";
    }
  }
  EXPECT_EQ(Contents(root_ / "exports" / "alone6"), Contents(model_)) << "fp32 as loaded, in an fp32 run";
  EXPECT_EQ(Contents(root_ / "exports" / "alone1"), Contents(model_)) << "by its masters in a bf16 run";
}

TEST_F(RankExportTest, MoreRanksThanFiles) {
  fs::remove_all(model_);
  ASSERT_TRUE(WriteRandomModel(SyntheticModel({.hidden = 36, .layers = 1, .vocab = 101}), {}, model_.string()).ok());
  directory_ = OpenModelDirectory(model_.string()).value();
  const Case c{4, at::kBFloat16};
  const Exported exported = Export(c);
  for (const auto& answer : exported.answers) ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(Contents(Target(c)), Contents(model_));
  // One file of rank 0's: the others send what they own, each element once.
  const auto weights = LoadWeights(directory_, WholeModel(directory_.config), at::kBFloat16, at::kCPU, {});
  const OptimizerShards shards(ElementsOf(weights->parameters), 4);
  int64_t elements = 0;
  for (int rank = 1; rank < 4; ++rank) {
    for (const ParameterRange& range : shards.owned(rank)) elements += range.count;
  }
  EXPECT_EQ(exported.master_bytes, 2 * elements * static_cast<int64_t>(sizeof(float)));
}

TEST_F(RankExportTest, ATargetThatExistsStays) {
  const Case c{3, at::kBFloat16};
  fs::create_directories(Target(c) / "kept");
  ExpectNothing(c, Export(c), 0, absl::StatusCode::kAlreadyExists, "exists: choose another name", {"out"});
  EXPECT_TRUE(fs::exists(Target(c) / "kept"));
}

TEST_F(RankExportTest, ARankThatCannotWriteIsEveryRanksAnswer) {
  for (const int guilty : {0, 1, 2}) {
    const Case c{3, at::kBFloat16};
    const Exported exported = Export(c, [&](int rank, ModelDirectory& source, auto&) {
      if (rank == guilty) source.shards[static_cast<size_t>(3 + guilty)].path = "/no/such/file";
    });
    ExpectNothing(c, exported, guilty, absl::StatusCode::kNotFound, "/no/such/file");
  }
  EXPECT_TRUE(Export({3, at::kBFloat16}).answers[0].ok()) << "the next one is made";
}

// The folder goes while the ranks write: what the second rank meets, the third too.
TEST_F(RankExportTest, AFolderThatVanishesIsAnAnswer) {
  const Case c{3, at::kFloat};
  const Exported exported = Export(c, [&](int rank, ModelDirectory&, std::unique_ptr<Communicator>& dp) {
    if (rank != 0) return;
    dp = std::make_unique<HookedRank>(std::move(dp), "export folder", [&] {
      for (const auto& entry : fs::directory_iterator(root_ / "exports")) fs::remove_all(entry.path());
    });
  });
  for (const auto& answer : exported.answers) EXPECT_THAT(answer, StatusIs(absl::StatusCode::kNotFound, HasSubstr("")));
  EXPECT_TRUE(fs::is_empty(root_ / "exports"));
}

// Another writer takes the name while the ranks write: its directory stays, ours goes.
TEST_F(RankExportTest, ATargetThatAppearsStays) {
  const Case c{3, at::kFloat};
  const Exported exported = Export(c, [&](int rank, ModelDirectory&, std::unique_ptr<Communicator>& dp) {
    if (rank != 2) return;
    dp = std::make_unique<HookedRank>(std::move(dp), "export written",
                                      [&] { fs::create_directories(Target(c) / "theirs"); });
  });
  ExpectNothing(c, exported, 0, absl::StatusCode::kAlreadyExists, "out", {"out"});
  EXPECT_TRUE(fs::exists(Target(c) / "theirs"));
}

TEST_F(RankExportTest, AnUnknownDtypeIsRefused) {
  const Case c{2, at::kFloat, "half"};
  for (const auto& answer : Export(c).answers) EXPECT_THAT(answer, Invalid("dtype: 'half'"));
  EXPECT_FALSE(fs::exists(Target(c)));
}

TEST_F(RankExportTest, ARankThatHasGoneEndsTheGeneration) {
  const Case c{3, at::kBFloat16};
  const Exported exported = Export(c, [&](int rank, ModelDirectory&, std::unique_ptr<Communicator>& dp) {
    if (rank == 1) dp.reset();
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(exported.answers[static_cast<size_t>(rank)], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
  }
  EXPECT_FALSE(fs::exists(Target(c)));
}

}  // namespace
}  // namespace stemma::testing
