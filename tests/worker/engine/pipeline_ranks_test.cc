// How the stages of one copy of the model speak, stop and fail together, and what they count. The numbers of a step are
// tests/schedule/pipeline_test.py's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "tests/testing/passed_send.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/engine/small_engine.h"
#include "worker/model/stage_links.h"

namespace stemma::testing {
namespace {

using ::testing::HasSubstr;

// Passes every call on to the right ranks, after `before` has seen it; `let_go` hears where a send is waited for.
class ObservedRank final : public Communicator {
 public:
  using Seen = std::function<void(const worker::CollectiveCall& call, int rank)>;
  ObservedRank(std::unique_ptr<Communicator> right, Seen before, Seen let_go = nullptr)
      : Communicator(right->axis(), right->rank(), right->size()),
        right_(std::move(right)),
        before_(std::move(before)),
        let_go_(std::move(let_go)) {}

 private:
  worker::StartedCall Start(const worker::CollectiveCall& call) override {
    before_(call, rank());
    if (call.kind == worker::CollectiveKind::kSend) {
      worker::StartedCall sent = PassSend(*right_, call);
      if (!let_go_) return sent;
      return {[this, &call, wait = std::move(sent.wait)] {
                let_go_(call, rank());
                return wait();
              },
              std::move(sent.done)};
    }
    at::Tensor output = call.output;
    const absl::Status status =
        call.kind == worker::CollectiveKind::kReceive ? right_->Receive(call.name, output, call.peer)
        : call.kind == worker::CollectiveKind::kAllReduceSum
            ? right_->AllReduceSum(call.name, output)
            : right_->Agree(call.name, {output.data_ptr<int64_t>(), static_cast<size_t>(output.numel())});
    return {[status] { return status; }};
  }

  const std::unique_ptr<Communicator> right_;
  const Seen before_, let_go_;
};

class PipelineRanksTest : public CopyRanksTest {
 protected:
  static InProcessOptions Options(const MeshSizes& sizes) {
    InProcessOptions options;
    *options.run.mutable_mesh() = MakeMesh(sizes);
    options.cluster_per_group = true;
    options.stage_seed = 3;
    return options;
  }
};

// The stage with the head has log-probs, losses and counts of rows; every element of the gradient is one rank's.
TEST_F(PipelineRanksTest, TheLastStageSpeaksForItsCopy) {
  const auto engine = Make(Options({.pp = 2, .tp = 2})), alone = Make(Options({}));
  ASSERT_TRUE(engine != nullptr && alone != nullptr);
  for (InProcess* run : {engine.get(), alone.get()}) {
    ASSERT_TRUE(run->Load(Request({16, 5, 9, 30})).ok());
    const auto vote = run->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    EXPECT_EQ(run->results().size(), 8U) << "each rollout once";
  }
  const internal::v1::StepSums& whole = alone->votes()[0].sums();
  uint64_t pipeline_bytes = 0;
  for (size_t rank = 0; rank < 4; ++rank) {
    const internal::v1::StepSums& sums = engine->votes()[rank].sums();
    const bool speaks = rank == 2;  // the first tensor-parallel rank of the last stage
    EXPECT_EQ(sums.computed_rows(), speaks ? whole.computed_rows() : 0) << rank;
    EXPECT_EQ(sums.loss_tokens(), speaks ? whole.loss_tokens() : 0) << rank;
    EXPECT_EQ(sums.policy_loss() != 0, speaks) << rank;
    EXPECT_GT(engine->votes()[rank].grad_norm_squared(), 0) << rank;
    EXPECT_GT(sums.pipeline_bytes(), 0) << rank;
    pipeline_bytes += sums.pipeline_bytes();
  }
  EXPECT_EQ(whole.pipeline_bytes(), 0);
  // Hidden states and gradients of all rows, each counted by its sender: prefixes of 15, 4, 8 and 29 rows, and waves of
  // two suffixes of 8, of which two ranks have half each; and from each of them a word for each of four clusters.
  const uint64_t rows = 2 * (8 + 2 + 4 + 15 + 4 * 8);
  EXPECT_EQ(pipeline_bytes, 2 * rows * static_cast<uint64_t>(alone->model().hidden_size) * 4 + 2 * 4 * 8);
}

// The first stage decides, wherever it is when it hears of it; all stages end the clusters that were begun, come to the
// same vote, and the next step is as if nothing had been.
TEST_F(PipelineRanksTest, ACancelAtAnyPollLeavesNobodyWaiting) {
  for (int polls = 0; polls < 6; ++polls) {
    CancelAtPoll cancel(0, polls);
    InProcessOptions options = Options({.pp = 3});
    options.edit_hooks = cancel.Hook();
    const auto engine = Make(options), undisturbed = Make(Options({.pp = 3}));
    ASSERT_TRUE(engine != nullptr && undisturbed != nullptr);
    ASSERT_TRUE(engine->Load(Request({16, 1, 9, 30})).ok());
    const auto vote = engine->Prepare(0);
    ASSERT_TRUE(vote.ok()) << "poll " << polls << ": " << vote.status();
    EXPECT_EQ(vote->yes(), !cancel.cancelled()) << "poll " << polls;
    EXPECT_EQ(cancel.cancelled(), polls < 4) << "each of four clusters asks once";
    for (size_t rank = 0; cancel.cancelled() && rank < 3; ++rank) {
      EXPECT_EQ(engine->votes()[rank].no_reason(), rank == 0 ? internal::v1::CANCELLED : internal::v1::PEER) << rank;
    }
    cancel.Disarm();
    Step(*engine);
    Step(*undisturbed);
    ExpectSameWeights(*engine, *undisturbed, 3);
  }
}

// So does one that only one of the first stage's tensor-parallel ranks has heard of.
TEST_F(PipelineRanksTest, ACancelOfOneRankOfTheFirstStageIsTheCopys) {
  std::atomic<bool> cancel = true;
  InProcessOptions options = Options({.pp = 2, .tp = 2});
  options.edit_hooks = [&](int rank, EngineHooks& hooks) {
    if (rank == 1) hooks.cancelled = [&cancel] { return cancel.load(); };
  };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 5, 9, 30})).ok());
  const auto no = engine->Prepare(0);
  ASSERT_TRUE(no.ok()) << no.status();
  EXPECT_EQ(no->no_reason(), internal::v1::CANCELLED);
  cancel = false;
  Step(*engine);
}

// Copies that share groups: the one that stops says so to the other in the exchanges that it owes, whether it owns the
// group or helps, and whether the other has begun the group. Ranks of a copy: stage by stage.
TEST_F(PipelineRanksTest, ACopyThatStopsTellsThoseThatShareItsGroups) {
  for (const int stopping : {0, 1}) {
    for (int polls = 0;; ++polls) {
      CancelAtPoll cancel(2 * stopping, polls);
      InProcessOptions options = Options({.dp = 2, .pp = 2});
      options.split = {.seed = 5, .ranks = 2};
      const auto undisturbed = Make(options);
      options.edit_hooks = cancel.Hook();
      const auto engine = Make(options);
      ASSERT_TRUE(engine != nullptr && undisturbed != nullptr);
      ASSERT_TRUE(engine->Load(Request({16, 1, 9, 30})).ok());
      int shared = 0;
      for (const v1::Cluster& cluster : engine->plan().plan.steps(0).clusters()) shared += cluster.has_owner_rank();
      ASSERT_EQ(shared, 3);
      const int64_t before = MakeCpuBackend().memory_stats().current_bytes;
      const auto vote = engine->Prepare(0);
      if (cancel.cancelled()) {
        EXPECT_EQ(MakeCpuBackend().memory_stats().current_bytes, before) << "what stages sent is let go of";
      }
      ASSERT_TRUE(vote.ok()) << "poll " << polls << ": " << vote.status();
      EXPECT_EQ(vote->yes(), !cancel.cancelled()) << "poll " << polls;
      for (int rank = 0; cancel.cancelled() && rank < 4; ++rank) {
        EXPECT_EQ(engine->votes()[static_cast<size_t>(rank)].no_reason(),
                  rank == 2 * stopping ? internal::v1::CANCELLED : internal::v1::PEER)
            << "rank " << rank << ", copy " << stopping << ", poll " << polls;
      }
      cancel.Disarm();
      Step(*engine);
      Step(*undisturbed);
      ExpectSameWeights(*engine, *undisturbed, 4);
      if (!cancel.cancelled()) break;
      ASSERT_LT(polls, 9);
    }
  }
}

// One copy's order cannot be run: the copy with which it shares groups hears of it where it waits for them.
TEST_F(PipelineRanksTest, ACopyWhoseOrderIsRefusedTellsThoseThatShareItsGroups) {
  for (const int wrong : {0, 1}) {
    bool edits = true;
    InProcessOptions options = Options({.dp = 2, .pp = 2});
    options.split = {.seed = 5, .ranks = 2};
    options.edit_step = [&](v1::StepPlan& step) {
      ASSERT_EQ(step.copies_size(), 2);
      if (edits) step.mutable_copies(wrong)->set_orders(1, "");
    };
    const auto engine = Make(options);
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->Load(Request({16, 5, 9, 30})).ok());
    const auto no = engine->Prepare(0);
    ASSERT_TRUE(no.ok()) << no.status();
    EXPECT_THAT(no->message(), HasSubstr(absl::StrCat("copies: copy ", wrong, ": stage 1's order")));
    edits = false;
    Step(*engine);
  }
}

// The planner's own orders of groups that are split by force.
TEST_F(PipelineRanksTest, PlannedCopiesShareGroups) {
  InProcessOptions options;
  *options.run.mutable_mesh() = MakeMesh({.dp = 2, .pp = 2});
  options.run.set_split_groups(v1::SPLIT_ON);
  const auto engine = Make(options), alone = Make({});
  ASSERT_TRUE(engine != nullptr && alone != nullptr);
  for (InProcess* run : {engine.get(), alone.get()}) {
    ASSERT_TRUE(run->Load(Request({16, 5, 9, 30})).ok());
    const auto vote = run->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    if (run == engine.get()) {
      // K/V and gK/gV of four prefixes, in fp32: each stage those of its own layers.
      const ModelConfig& model = alone->model();
      const int64_t elements = (15 + 4 + 8 + 29) * model.num_layers * model.num_kv_heads * model.head_size;
      EXPECT_EQ(static_cast<int64_t>(vote->sums().split_bytes()), elements * (2 * 4 + 2 * 4));
    }
  }
  for (const TensorSpec& tensor : ModelTensors(alone->model())) {
    const auto own = alone->HfGradient(tensor), shared = engine->HfGradient(tensor);
    ASSERT_TRUE(own.ok() && shared.ok()) << own.status() << shared.status();
    // Sums in another order, in fp32.
    EXPECT_LT(shared->sub(*own).abs().max().item<double>(), 1e-5 * own->abs().max().item<double>()) << tensor.name;
  }
}

TEST_F(PipelineRanksTest, ABadPayloadIsANoOfEveryRank) {
  TrainingRequest bad = Request({16, 5, 9, 30});
  const auto token = static_cast<int32_t>(vocab());
  bad.groups[2].mutable_rollouts(1)->mutable_response_tokens()->replace(
      4 * sizeof(token), sizeof(token), reinterpret_cast<const char*>(&token), sizeof(token));
  ExpectABadTokenIsEveryRanksNo(Options({.dp = 2, .pp = 2}), std::move(bad));
}

// No gradient says in a pass without backward that hidden states were taken: a stage lets go of them all the same. In
// the step the first stage runs one wave after the other.
TEST_F(PipelineRanksTest, AStageHoldsFewOfTheHiddenStatesThatItSent) {
  std::atomic<int> held = 0, most = 0;
  InProcessOptions options = Options({.pp = 2});
  options.edit_pp_communicator = [&](std::unique_ptr<Communicator> right) {
    const auto before = [&](const worker::CollectiveCall& call, int rank) {
      if (rank > 0 || call.kind != worker::CollectiveKind::kSend || call.name != worker::kHiddenName) return;
      most = std::max(most.load(), ++held);
    };
    const auto let_go = [&](const worker::CollectiveCall& call, int rank) {
      if (rank == 0 && call.name == worker::kHiddenName) --held;
    };
    return std::make_unique<ObservedRank>(std::move(right), before, let_go);
  };
  options.edit_step = [](v1::StepPlan& step) {
    for (std::string& order : *step.mutable_copies(0)->mutable_orders()) order = "AFBCAFBCAFBCAFBC";
  };
  options.edit_entry_pass = [](v1::StepPlan& pass) { SplitClusters(pass, [](uint32_t group) { return group; }); };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  TrainingRequest request = Request({16, 5, 9, 30});
  request.update.mutable_loss()->set_loss_mode("importance_sampling");
  request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
  request.update.mutable_old()->set_weights("policy");
  ASSERT_TRUE(engine->Load(std::move(request)).ok());
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  EXPECT_EQ(held, 0);
  EXPECT_EQ(most, 3) << "two, and the one that was sent now";
}

// A plan whose stages would wait for each other is refused before the first operation.
TEST_F(PipelineRanksTest, AnOrderThatWaitsForEverIsANoOfEveryRank) {
  InProcessOptions options = Options({.pp = 2});
  options.edit_step = [](v1::StepPlan& step) {
    step.mutable_copies(0)->set_orders(0, "AFBCAFBC");
    step.mutable_copies(0)->set_orders(1, "AFAFBCBC");
  };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 5})).ok());
  const auto no = engine->Prepare(0);
  ASSERT_TRUE(no.ok()) << no.status();
  EXPECT_THAT(no->message(), HasSubstr("copies: copy 0: the stages wait for each other for ever"));
}

// Out of memory where another stage waits for hidden states: all end, as their processes would, and none hangs.
TEST_F(PipelineRanksTest, ARankThatFailsInsideAPassEndsTheGeneration) {
  for (const int failing : {0, 1, 2}) {
    InProcessOptions options = Options({.pp = 3});
    options.edit_pp_communicator = [failing](std::unique_ptr<Communicator> right) {
      return std::make_unique<ObservedRank>(std::move(right), [failing](const worker::CollectiveCall& call, int rank) {
        const bool sends = call.kind == worker::CollectiveKind::kSend;
        if (rank != failing || !sends || call.name == worker::kWordName) return;
        throw c10::OutOfMemoryError({"test", "here", 0}, "no memory");
      });
    };
    const auto engine = Make(options);
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->Load(Request({16, 5, 9})).ok());
    EXPECT_THAT(engine->Prepare(0).status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("pp.0.0.0")));
  }
}

// The gradient of a tied embedding that does not cross in one piece: the lookup's and the head's, on both stages.
TEST_F(PipelineRanksTest, ALargeTiedEmbeddingIsOneGradient) {
  ModelConfig config = SyntheticModel(
      {.hidden = 64, .layers = 2, .heads = 2, .kv_heads = 2, .head_size = 16, .ffn = 32, .vocab = 17'000});
  config.tie_word_embeddings = true;
  const std::string folder = ::testing::TempDir() + "/pipeline_tied";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(WriteRandomModel(config, {}, folder).ok());
  InProcessOptions options;
  options.run.set_model(folder);
  options.run.set_dtype("fp64");
  options.run.set_head_chunk_tokens(128);
  options.run.set_threads(1);
  std::vector<at::Tensor> gradients;
  for (const MeshSizes& sizes : {MeshSizes{}, MeshSizes{.pp = 2}}) {
    *options.run.mutable_mesh() = MakeMesh(sizes);
    auto engine = InProcess::Create(options, MakeCpuBackend());
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE((*engine)->Load(SyntheticRequest({16, 5}, {8, 8}, config.vocab_size)).ok());
    ASSERT_TRUE((*engine)->Prepare(0).ok());
    const auto gradient = (*engine)->HfGradient(ModelTensors(config).front());
    ASSERT_TRUE(gradient.ok()) << gradient.status();
    gradients.push_back(*gradient);
  }
  EXPECT_GT(gradients[0].numel(), 1 << 20);
  const double error = gradients[1].sub(gradients[0]).abs().max().item<double>();
  EXPECT_LT(error, 1e-12 * gradients[0].abs().max().item<double>());  // sums in another order
  std::filesystem::remove_all(folder);
}

// A send that takes long to begin is its own operation's, whenever it is waited for.
TEST_F(PipelineRanksTest, NoPhaseTakesLessThanNothing) {
  InProcessOptions options = Options({.pp = 3});
  options.edit_pp_communicator = [](std::unique_ptr<Communicator> right) {
    return std::make_unique<ObservedRank>(std::move(right), [](const worker::CollectiveCall& call, int /*rank*/) {
      absl::Notification never;
      if (call.kind == worker::CollectiveKind::kSend) never.WaitForNotificationWithTimeout(absl::Milliseconds(10));
    });
  };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 5, 9, 30})).ok());
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  for (const internal::v1::Vote& of_rank : engine->votes()) {
    EXPECT_GT(of_rank.sums().prefix_forward_s(), 0);
    EXPECT_GT(of_rank.sums().suffix_s(), 0);
    EXPECT_GT(of_rank.sums().prefix_backward_s(), 0);
  }
}

// What a stage waits for another is told apart, and makes no phase slower than it is.
TEST_F(PipelineRanksTest, WaitingIsInNoPhase) {
  constexpr absl::Duration kEach = absl::Milliseconds(40);
  std::atomic<int> received = 0;
  InProcessOptions options = Options({.pp = 2});
  options.edit_pp_communicator = [&](std::unique_ptr<Communicator> right) {
    return std::make_unique<ObservedRank>(std::move(right), [&](const worker::CollectiveCall& call, int rank) {
      if (call.kind != worker::CollectiveKind::kReceive || call.name != worker::kHiddenName || rank != 1) return;
      ++received;
      absl::Notification never;
      never.WaitForNotificationWithTimeout(kEach);
    });
  };
  const auto engine = Make(options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16, 5, 9, 30})).ok());
  const double begin_s = RealClock().MonotonicSeconds();
  const auto vote = engine->Prepare(0);
  const double elapsed_s = RealClock().MonotonicSeconds() - begin_s;
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  const double waited_s = received * absl::ToDoubleSeconds(kEach);
  const internal::v1::StepSums& sums = engine->votes()[1].sums();
  EXPECT_GE(received, 8) << "a prefix and a wave of each group";
  EXPECT_GE(sums.pipeline_s(), waited_s);
  EXPECT_LE(sums.prefix_forward_s() + sums.suffix_s() + sums.prefix_backward_s() + waited_s, elapsed_s);
}

}  // namespace
}  // namespace stemma::testing
