// A request's first step against the pass before it, which has the same weights: every log-prob is the same number, so
// that no ratio is beyond a clip, however narrow. Models, meshes, requests and budgets are drawn, most of them in bf16,
// where rows that are added in another order differ. The ranks are threads; server and worker are the product's own.
//
// CI runs fixed seeds; STEMMA_SEED draws others, and a failure prints its case.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/cost/cluster_facts.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/worker/engine/gang_cases.h"

namespace stemma::testing {
namespace {

TrainingRequest DrawUpdate(const Case& c, Draw& draw) {
  TrainingRequest request = SyntheticRequest(c.prompts, c.responses, c.model.vocab_size);
  v1::UpdateHeader& update = request.update;
  update.mutable_loss()->set_loss_mode(draw.Chance(50) ? "gspo" : "vanilla");
  update.mutable_loss()->set_clip_ratio_low(1e-9);
  update.mutable_loss()->set_clip_ratio_high(1e-9);
  update.mutable_loss()->set_temperature(draw.Chance(50) ? 1 : 0.7);
  update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
  update.mutable_old()->set_weights("policy");
  // A KL term of |old - new|: none of them is hidden by another in a sum.
  update.mutable_loss()->set_kl_loss_type("abs");
  update.mutable_loss()->set_kl_loss_coef(0.1);
  *update.mutable_ref() = update.old();
  update.set_ppo_epochs(static_cast<uint32_t>(draw.Between(1, 2)));
  const auto groups = static_cast<int64_t>(c.prompts.size());
  update.set_ppo_mini_batch_size(static_cast<uint64_t>(draw.Between(1, groups)));
  update.set_shuffle(draw.Chance(50));
  if (update.shuffle()) update.set_seed(7);
  return request;
}

// What the drawn steps have been computed in: the test says little without these.
struct Tally {
  int ran = 0, in_blocks = 0, split = 0, cut = 0, shared = 0;

  void Add(const v1::StepPlan& step) {
    ++ran;
    bool blocks = false, splits = false, cuts = false, shares = false;
    for (const v1::Cluster& cluster : step.clusters()) {
      blocks |= cluster.prefix_block_rows() > 0 && RunsOwnPrefix(cluster);
      splits |= IsSplit(cluster);
      shares |= cluster.prefix_groups_size() > 1;
      for (const v1::Wave& wave : cluster.waves()) cuts |= wave.cut_rows();
    }
    in_blocks += blocks ? 1 : 0;
    split += splits ? 1 : 0;
    cut += cuts ? 1 : 0;
    shared += shares ? 1 : 0;
  }
};

class FirstRatiosTest : public GangCaseTest {};

TEST_F(FirstRatiosTest, AreOneInEveryDtypeAndOnEveryMesh) {
  constexpr int kCases = 60;
  Draw draw(FirstSeed() + 1);
  Tally tally;
  for (int i = 0; i < kCases; ++i) {
    const Case c = DrawGangCase(draw);
    const TrainingRequest request = DrawUpdate(c, draw);
    SCOPED_TRACE(
        absl::StrCat("STEMMA_SEED=", FirstSeed(), " case ", i, ": ", c.text(), " ", request.update.ShortDebugString()));
    const std::unique_ptr<InProcess> engine = Load(c, request);
    if (engine == nullptr) continue;
    const auto vote = engine->Prepare(0);
    ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status() << (vote.ok() ? vote->message() : "");
    EXPECT_GT(vote->sums().loss_tokens(), 0u);
    EXPECT_EQ(vote->sums().kl_loss(), 0) << "mean |old - new|";
    EXPECT_EQ(vote->sums().clipped_tokens(), 0u) << "a clip of 1e-9";
    tally.Add(engine->plan().plan.steps(0));
  }
  std::printf("%d of %d cases ran: %d in blocks, %d with split groups, %d with rollouts cut, %d of several prefixes\n",
              tally.ran, kCases, tally.in_blocks, tally.split, tally.cut, tally.shared);
  EXPECT_GT(tally.ran, kCases / 3);
  EXPECT_GT(tally.in_blocks, kCases / 20);
  EXPECT_GT(tally.split, kCases / 20);
  EXPECT_GT(tally.shared, kCases / 20);
}

// Blocks of other rows in the pass alone move log-probs in bf16, and a clip so narrow tells.
TEST_F(FirstRatiosTest, ControlOtherBlocksInThePassAreSeen) {
  Draw draw(2);
  Case c = DrawCase(draw);
  c.model = SyntheticModel({.hidden = 64, .layers = 3, .heads = 4, .kv_heads = 2, .head_size = 16, .ffn = 96});
  c.run.Clear();
  c.run.set_dtype("bf16");
  c.run.set_schedule(v1::REUSE);
  c.run.set_threads(1);
  c.run.set_head_chunk_tokens(64);
  c.prompts = {300, 200};
  c.responses = {40, 30, 20};
  c.budget_of_ample = 0;
  TrainingRequest request = DrawUpdate(c, draw);
  request.update.clear_ppo_mini_batch_size();
  InProcessOptions options;
  options.edit_entry_pass = [](v1::StepPlan& pass) {
    for (v1::Cluster& cluster : *pass.mutable_clusters()) cluster.set_prefix_block_rows(48);
  };
  const std::unique_ptr<InProcess> engine = Load(c, request, options);
  ASSERT_NE(engine, nullptr);
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  EXPECT_GT(vote->sums().kl_loss(), 1e-6);
  EXPECT_GT(vote->sums().clipped_tokens(), vote->sums().loss_tokens() / 20);
}

}  // namespace
}  // namespace stemma::testing
