// The real engine on a small random model, for tests of what it answers and logs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_init.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {

class SmallEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto& test = *::testing::UnitTest::GetInstance()->current_test_info();
    std::string name =
        std::string(test.test_suite_name()) + "_" + test.name();  // tests of several binaries run at once
    std::replace(name.begin(), name.end(), '/', '_');             // of a test with a parameter
    directory_ = ::testing::TempDir() + "/small_engine_" + name;
    std::filesystem::remove_all(directory_);
    ASSERT_TRUE(WriteRandomModel(model(), {}, directory_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Null, and the test fails, where the engine cannot be made.
  std::unique_ptr<InProcess> MakeEngine(Backend backend, InProcessOptions options = {}) const {
    options.run.set_model(directory_);
    if (options.run.dtype().empty()) options.run.set_dtype("fp32");
    options.run.set_schedule(v1::REUSE);
    options.run.set_head_chunk_tokens(128);
    options.run.set_threads(1);
    auto engine = InProcess::Create(options, std::move(backend));
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  virtual ModelConfig model() const { return SyntheticModel({}); }

  static int64_t vocab() { return SyntheticModel({}).vocab_size; }

  // Two responses of eight tokens to each prompt.
  static TrainingRequest Request(const std::vector<int64_t>& prompts) {
    TrainingRequest request = SyntheticRequest(prompts, {8, 8}, vocab());
    request.update.mutable_adam()->set_learning_rate(1e-3);
    request.update.mutable_adam()->set_eps(1e-8);
    return request;
  }

 private:
  std::string directory_;
};

// Cancels what runs when one rank asks whether it is cancelled, after so many answers of no. Outlives the engine, whose
// ranks ask in threads of their own.
class CancelAtPoll {
 public:
  CancelAtPoll(int rank, int polls) : rank_(rank), left_(polls) {}

  // Returns what InProcessOptions::edit_hooks takes.
  auto Hook() {
    return [this](int rank, EngineHooks& hooks) {
      if (rank != rank_) return;
      hooks.cancelled = [this] {
        if (!armed_ || left_-- > 0) return false;
        cancelled_ = true;
        return true;
      };
    };
  }
  bool cancelled() const { return cancelled_; }
  void Disarm() { armed_ = false; }

 private:
  const int rank_;
  std::atomic<int> left_;
  std::atomic<bool> armed_ = true, cancelled_ = false;
};

// What tests of the ranks of one copy share: groups of several sizes, and steps of them.
class CopyRanksTest : public SmallEngineTest {
 protected:
  std::unique_ptr<InProcess> Make(const InProcessOptions& options) const {
    return MakeEngine(MakeCpuBackend(), options);
  }

  static void Step(InProcess& engine) {
    ASSERT_TRUE(engine.Load(Request({16, 5, 9, 30})).ok());
    const auto vote = engine.Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
    ASSERT_TRUE(engine.Apply(0, *vote).ok());
  }

  // A rank alone has heard of a cancel: its copy stops, every rank says no, and nothing is left behind. Ranks: 4.
  void ExpectACancelOfOneRankIsEveryRanksNo(const InProcessOptions& options) const {
    for (const int cancelled_rank : {0, 1, 3}) {
      std::atomic<bool> cancel = false;
      InProcessOptions cancelled = options;
      cancelled.edit_hooks = [&](int rank, EngineHooks& hooks) {
        if (rank == cancelled_rank) hooks.cancelled = [&cancel] { return cancel.load(); };
      };
      const auto engine = Make(cancelled), undisturbed = Make(options);
      ASSERT_TRUE(engine != nullptr && undisturbed != nullptr);
      ASSERT_TRUE(engine->Load(Request({16, 5, 9, 30})).ok());
      cancel = true;
      const auto no = engine->Prepare(0);
      ASSERT_TRUE(no.ok()) << no.status();
      EXPECT_FALSE(no->yes());
      EXPECT_EQ(no->no_reason(), internal::v1::CANCELLED);
      for (int rank = 0; rank < 4; ++rank) {
        const internal::v1::Vote& vote = engine->votes()[static_cast<size_t>(rank)];
        EXPECT_EQ(vote.no_reason(), rank == cancelled_rank ? internal::v1::CANCELLED : internal::v1::PEER) << rank;
      }
      cancel = false;
      Step(*engine);
      Step(*undisturbed);
      ExpectSameWeights(*engine, *undisturbed, 4);
    }
  }

  // A payload with a token that no model has is every rank's no, and the next one is trained.
  void ExpectABadTokenIsEveryRanksNo(const InProcessOptions& options, TrainingRequest bad) const {
    const auto engine = Make(options);
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->Load(std::move(bad)).ok());
    const auto no = engine->Prepare(0);
    ASSERT_TRUE(no.ok()) << no.status();
    EXPECT_NE(no->message().find("holds token"), std::string::npos) << no->message();
    Step(*engine);
  }

  static void ExpectSameWeights(const InProcess& a, const InProcess& b, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (size_t i = 0; i < a.weights(rank).parameters.size(); ++i) {
        EXPECT_TRUE(a.weights(rank).parameters[i].weight.equal(b.weights(rank).parameters[i].weight)) << rank;
      }
    }
  }
};

}  // namespace stemma::testing
