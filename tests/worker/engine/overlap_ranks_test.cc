// A reduction that begins in the last backward of a step: where it begins, that no bit depends on it, and that a rank
// that stops anywhere, between two of its rounds too, leaves nobody waiting. Placements, splits, tape policies, blocks
// and buckets are drawn; STEMMA_SEED draws others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "tests/testing/draw.h"
#include "tests/testing/recording_rank.h"
#include "tests/worker/engine/small_engine.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kRanksMax = 3;
constexpr int64_t kOneBucket = kBucketElements;  // of the whole model: its gradients are final at the very end

// Stops one rank in one place of its step.
struct Stop {
  enum How { kNever, kCancelled, kThrowsBefore, kThrowsAfter, kThrowsInBackward };
  How how = kNever;
  int rank = 0;
  int after = 0;  // operations, or kernels of a backward
};

// What each rank does, in its order: "o" an operation begins, "k" a layer's backward, "e" the embedding's, "s" an
// exchange of a split group, "+" a round of the reduction begins, "-" it has ended, "a" the agreement.
class Journal {
 public:
  void Clear() { of_ranks_.fill(""); }
  void Note(int rank, char what) { of_ranks_[static_cast<size_t>(rank)] += what; }
  const std::string& of(int rank) const { return of_ranks_[static_cast<size_t>(rank)]; }
  std::string LastOperation(int rank) const {
    const size_t begin = of(rank).rfind('o');
    return begin == std::string::npos ? "" : of(rank).substr(begin + 1);
  }

 private:
  std::array<std::string, kRanksMax> of_ranks_;  // each written by its rank's thread
};

// What the kernels of all ranks tell; a table of kernels holds plain functions.
struct Kernels {
  std::function<void(char what)> tell;
  void (*qkv_backward)(const QkvBackwardOperands&) = nullptr;
  void (*embedding_backward)(const EmbeddingBackwardOperands&) = nullptr;
};
Kernels kernels;
thread_local int this_rank = 0;

Backend TellingBackend() {
  Backend backend = MakeCpuBackend();
  kernels.qkv_backward = backend.kernels.qkv_backward;
  kernels.embedding_backward = backend.kernels.embedding_backward;
  backend.kernels.qkv_backward = [](const QkvBackwardOperands& operands) {
    kernels.tell('k');
    kernels.qkv_backward(operands);
  };
  backend.kernels.embedding_backward = [](const EmbeddingBackwardOperands& operands) {
    kernels.tell('e');
    kernels.embedding_backward(operands);
  };
  return backend;
}

class OverlapRanksTest : public SmallEngineTest {
 protected:
  explicit OverlapRanksTest(uint32_t seed = 0) : seed_(FirstSeed() + seed), random_(seed_) {
    kernels.tell = [this](char what) {
      journal_.Note(this_rank, what);
      if (stop_.how == Stop::kThrowsInBackward && IsStop()) throw std::bad_alloc();
    };
  }
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_()) % end; }

  std::unique_ptr<InProcess> MakeRanks(InProcessOptions options, DoneIs done = DoneIs::kWhenItIs) {
    options.edit_communicator = [this, done](std::unique_ptr<Communicator> right) {
      const int rank = right->rank();
      return MakeRecordingRank(std::move(right), done, [this, rank](const std::string& name, bool begins) {
        if (name == "gradients") journal_.Note(rank, begins ? '+' : '-');
        if (name == "gradients" && begins && rounds_take_ > absl::ZeroDuration()) RealClock().Sleep(rounds_take_);
        if (name == "step" && begins) journal_.Note(rank, 'a');
        if (name == "split.word" && begins) journal_.Note(rank, 's');
      });
    };
    options.edit_hooks = [this](int rank, EngineHooks& hooks) { SetHooks(rank, hooks); };
    return MakeEngine(TellingBackend(), options);
  }

  // Groups with and without a prefix; every way of running them.
  InProcessOptions DrawOptions() {
    InProcessOptions options;
    options.run.mutable_mesh()->set_dp(2 + Below(2));
    options.run.set_wave_suffixes(1 + Below(3));
    options.cluster_per_group = Below(2) == 0;
    options.placement_seed = 1 + Below(1000);
    if (Below(3) > 0) options.split = {.seed = 1 + Below(1000), .policies = true};
    const uint32_t block_rows = Below(2) * (1 + Below(9));
    const bool ends_dense = Below(2) == 0;
    options.edit_step = [block_rows, ends_dense](v1::StepPlan& step) {
      std::map<uint32_t, v1::Cluster*> last;  // by rank
      for (v1::Cluster& cluster : *step.mutable_clusters()) {
        if (!cluster.has_owner_rank() && block_rows > 0) cluster.set_prefix_block_rows(block_rows);
        last[cluster.dp_rank()] = &cluster;
      }
      for (const auto& [rank, cluster] : last) {
        const bool shared = cluster->has_owner_rank() || cluster->helper_ranks_size() > 0;
        if (ends_dense && !shared) cluster->clear_prefix_groups();
      }
    };
    options.bucket_elements = 1 + Below(200'000);
    return options;
  }
  static TrainingRequest AllKinds() { return Request({16, 1, 9, 30, 5}); }

  static std::vector<at::Tensor> Gradients(const InProcess& engine) {
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < engine.weights().parameters.size(); ++i) {
      gradients.push_back(engine.Gradient(static_cast<int>(i)));
    }
    return gradients;
  }

  std::vector<at::Tensor> Step(InProcess& engine) {
    journal_.Clear();
    const auto vote = engine.Prepare(0);
    EXPECT_TRUE(vote.ok() && vote->yes()) << vote.status() << (vote.ok() ? vote->message() : "") << When();
    return Gradients(engine);
  }

  void ExpectSame(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) const {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << "parameter " << i << When();
  }

  std::string When() const {
    return absl::StrCat("; STEMMA_SEED=", seed_, ", way ", static_cast<int>(stop_.how), " of rank ", stop_.rank,
                        " after ", stop_.after);
  }

  // Stops every rank there; false: the rank has no such place. The step after it has the right bits.
  bool StopAt(InProcess& engine, const Stop& stop, const std::vector<at::Tensor>& right) {
    stop_ = stop;
    passed_ = 0;
    journal_.Clear();
    const auto no = engine.Prepare(0);
    EXPECT_TRUE(no.ok()) << no.status() << When();
    if (!no.ok() || passed_ <= stop.after) return false;
    in_reduction_ += journal_.of(stop.rank).find('+') < place_of_stop_ ? 1 : 0;
    for (size_t rank = 0; rank < engine.votes().size(); ++rank) {
      const auto own = stop.how == Stop::kCancelled ? internal::v1::CANCELLED : internal::v1::OUT_OF_MEMORY;
      EXPECT_FALSE(engine.votes()[rank].yes());
      EXPECT_EQ(engine.votes()[rank].no_reason(), static_cast<int>(rank) == stop.rank ? own : internal::v1::PEER)
          << "rank " << rank << When();
    }
    stop_.how = Stop::kNever;
    ExpectSame(Step(engine), right);
    return true;
  }

  const uint32_t seed_;
  std::mt19937 random_;
  Journal journal_;
  absl::Duration rounds_take_;  // of the thread that begins one
  int in_reduction_ = 0;        // stops after a round had begun

 private:
  // Counts the places of the rank that stops, on its thread.
  bool IsStop() {
    if (this_rank != stop_.rank || passed_++ != stop_.after) return false;
    place_of_stop_ = journal_.of(this_rank).size();
    return true;
  }

  void SetHooks(int rank, EngineHooks& hooks) {
    this_rank = rank;
    hooks.cancelled = [this, rank] {
      journal_.Note(rank, 'o');
      if (stop_.how == Stop::kThrowsBefore && IsStop()) throw std::bad_alloc();
      return stop_.how == Stop::kCancelled && IsStop();
    };
    hooks.progress = [this](const internal::v1::Heartbeat&) {
      if (stop_.how == Stop::kThrowsAfter && IsStop()) throw std::bad_alloc();
    };
  }

  Stop stop_;  // written between steps
  int passed_ = 0;
  size_t place_of_stop_ = 0;  // in the journal
};

class DrawnOverlapTest : public OverlapRanksTest, public ::testing::WithParamInterface<uint32_t> {
 protected:
  DrawnOverlapTest() : OverlapRanksTest(GetParam()) {}
};

// Each parameter is a bucket. Nothing says that a round is done, so exactly the two that have buffers begin: right
// after the top layer's backward of the last operation, whose other layers and embedding come later.
TEST_P(DrawnOverlapTest, RoundsBeginWithTheLastOperationsFirstLayer) {
  InProcessOptions options;
  options.run.mutable_mesh()->set_dp(3);
  options.placement_seed = 1 + seed_;
  options.bucket_elements = 1;
  const auto engine = MakeRanks(options, DoneIs::kNever);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(AllKinds()).ok());
  Step(*engine);
  int with_work = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string all = journal_.of(rank);
    EXPECT_THAT(all, ::testing::EndsWith("-a")) << "the agreement is last" << When();
    if (all.find('o') == std::string::npos) {
      EXPECT_THAT(all, StartsWith("++-+")) << "a rank without work" << When();
      continue;
    }
    ++with_work;
    // A trajectory of its own has the top layer's backward in two parts.
    EXPECT_THAT(journal_.LastOperation(rank), ::testing::MatchesRegex("kk?\\+\\+kkke[-+]+a")) << all << When();
    EXPECT_EQ(all.find('+'), all.size() - journal_.LastOperation(rank).size() + journal_.LastOperation(rank).find('+'))
        << "before the last operation: " << all << When();
  }
  EXPECT_GE(with_work, 1);
  EXPECT_GT(engine->votes()[0].sums().reduce_s(), 0);
  for (int rank = 0; rank < 3; ++rank) {
    const bool worked = journal_.of(rank).find('o') != std::string::npos;
    EXPECT_EQ(engine->votes()[static_cast<size_t>(rank)].sums().reduce_overlapped_s() > 0, worked) << When();
  }
}

// The cost model learns from the phases' seconds.
TEST_F(OverlapRanksTest, WhatRoundsTakeIsInNoPhase) {
  InProcessOptions options;
  options.run.mutable_mesh()->set_dp(2);
  options.bucket_elements = 1;
  const auto engine = MakeRanks(options, DoneIs::kNever);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 5})).ok());
  rounds_take_ = absl::Milliseconds(100);
  const double begin_s = RealClock().MonotonicSeconds();
  Step(*engine);
  const double elapsed_s = RealClock().MonotonicSeconds() - begin_s;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string all = journal_.of(rank);
    const double slept_s = 0.1 * static_cast<double>(std::count(all.begin(), all.end(), '+'));
    ASSERT_THAT(journal_.LastOperation(rank), StartsWith("k++")) << "two of them in a phase";
    const internal::v1::StepSums& sums = engine->votes()[static_cast<size_t>(rank)].sums();
    const double phases_s = sums.prefix_forward_s() + sums.suffix_s() + sums.prefix_backward_s();
    EXPECT_GE(phases_s, 0);
    EXPECT_LE(phases_s + slept_s, elapsed_s);
    EXPECT_GE(sums.reduce_overlapped_s(), 0.2);
    EXPECT_LE(sums.reduce_overlapped_s() + sums.reduce_s(), elapsed_s) << "one follows the other";
  }
}

// The bits are those of a reduction that begins when everything has ended.
TEST_P(DrawnOverlapTest, GradientsDoNotDependOnWhereTheReductionBegins) {
  InProcessOptions options = DrawOptions();
  const auto overlapped = MakeRanks(options);
  const int ranks = static_cast<int>(options.run.mesh().dp());
  options.bucket_elements = kOneBucket;
  const auto at_the_end = MakeRanks(options);
  ASSERT_TRUE(overlapped != nullptr && at_the_end != nullptr);
  for (InProcess* engine : {overlapped.get(), at_the_end.get()}) ASSERT_TRUE(engine->Load(AllKinds()).ok());
  const std::vector<at::Tensor> expected = Step(*at_the_end);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_THAT(journal_.LastOperation(rank), Not(::testing::ContainsRegex("\\+.*[ke]"))) << "control" << When();
    EXPECT_EQ(at_the_end->votes()[static_cast<size_t>(rank)].sums().reduce_overlapped_s(), 0) << When();
  }
  for (int turn = 0; turn < 2; ++turn) {
    ExpectSame(Step(*overlapped), expected);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_THAT(journal_.of(rank), Not(::testing::ContainsRegex("\\+.*s")))
          << "rounds come after exchanges" << When();
    }
  }
}

// A rank that sends gK/gV last begins when they are sent; its peers can end that exchange without any round.
TEST_P(DrawnOverlapTest, AHelperBeginsBehindItsLastExchange) {
  InProcessOptions options;
  options.run.mutable_mesh()->set_dp(2);
  options.run.set_wave_suffixes(1);
  options.split = {.seed = 1 + seed_, .ranks = 2};
  options.bucket_elements = 1;
  const auto engine = MakeRanks(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16})).ok());
  Step(*engine);
  int owners = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const bool owner = journal_.LastOperation(rank).find('k') != std::string::npos;
    owners += owner ? 1 : 0;
    EXPECT_THAT(journal_.LastOperation(rank), StartsWith(owner ? "k+" : "s+")) << journal_.of(rank) << When();
    EXPECT_EQ(engine->votes()[static_cast<size_t>(rank)].sums().reduce_overlapped_s() > 0, owner);
  }
  EXPECT_EQ(owners, 1);
}

TEST_P(DrawnOverlapTest, ARankThatStopsAnywhereLeavesNobodyWaiting) {
  InProcessOptions options = DrawOptions();
  options.bucket_elements = 1 + Below(60'000);
  const auto engine = MakeRanks(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(AllKinds()).ok());
  const std::vector<at::Tensor> right = Step(*engine);
  int stops = 0;
  for (const Stop::How how : {Stop::kThrowsInBackward, Stop::kCancelled, Stop::kThrowsBefore, Stop::kThrowsAfter}) {
    const uint32_t stride = how == Stop::kThrowsInBackward ? 2 : 3;
    for (int rank = 0; rank < static_cast<int>(options.run.mesh().dp()); ++rank) {
      for (int after = static_cast<int>(Below(stride));; after += static_cast<int>(stride)) {
        if (!StopAt(*engine, {how, rank, after}, right) || HasFailure()) break;
        ++stops;
      }
    }
  }
  EXPECT_GE(stops, 12) << "places to stop at" << When();
  EXPECT_GE(in_reduction_, 2) << "between rounds" << When();
}

INSTANTIATE_TEST_SUITE_P(Drawn, DrawnOverlapTest, ::testing::Range(0U, 5U));

}  // namespace
}  // namespace stemma::testing
