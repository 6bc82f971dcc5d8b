// The bytes that common/cost/tensor_parallel_cost.h and context_parallel_cost.h say that a rank sends to those of its
// copy, against those that its communicators count: drawn models, meshes, requests and memory settings, to the byte.
//
// CI runs fixed seeds, `--gtest_random_seed=N` others.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mesh.h"
#include "common/cost/context_parallel_cost.h"
#include "common/cost/context_rows.h"
#include "common/cost/pipeline_cost.h"
#include "common/cost/rank_shape.h"
#include "common/cost/tensor_parallel_cost.h"
#include "common/model/model_init.h"
#include "glog/logging.h"
#include "tests/testing/draw.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "tests/testing/whole_model.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/engine/partial_gradients.h"
#include "worker/model/context_exchange.h"
#include "worker/model/stage_links.h"
#include "worker/ops/tensor_parallel.h"

namespace stemma::testing {
namespace {

constexpr int kCasesPerSeed = 60;

struct Case {
  ModelConfig model;
  v1::RunConfig run;
  std::vector<int64_t> prompts, responses;
  bool entry_pass = false, whole_rollouts = false;
  uint32_t context_seed = 0;  // of who runs which rollouts, and which are cut by rows; 0: as planned

  std::string text() const {
    return absl::StrCat(model.model_type, " D ", model.hidden_size, " L ", model.num_layers, " H ", model.num_heads,
                        " K ", model.num_kv_heads, " V ", model.vocab_size, entry_pass ? " entry pass " : " ",
                        "context ", context_seed, " ", run.ShortDebugString());
  }
};

class CaseDraw : public Draw {
 public:
  using Draw::Draw;

  Case One() {
    Case c;
    const int64_t tp = Between(2, 4), kv_heads = Of<int64_t>({1, tp, 2 * tp});
    c.model = SyntheticModel({.hidden = 8 * Between(2, 6),
                              .layers = Between(1, 3),
                              .heads = std::lcm(kv_heads, tp),
                              .kv_heads = kv_heads,
                              .head_size = 8,
                              .ffn = 8 * tp,
                              .vocab = Between(50, 90),
                              .qk_norm = true});
    const int64_t kind = Between(0, 2);
    if (kind == 2) {
      c.model.experts = Experts{.count = Between(2, 6), .per_token = Between(1, 2)};
      c.model.SetFamily(*FindFamily("qwen3_moe"));
      const int64_t ep = Of<int64_t>({1, tp});  // what travels is the same
      if (c.model.experts->count % ep == 0) c.run.mutable_mesh()->set_ep(static_cast<uint32_t>(ep));
    }
    if (kind == 1) {
      c.model.SetFamily(*FindFamily("qwen2"));
      c.model.hidden_size = c.model.num_heads * c.model.head_size;
    }
    c.model.max_positions = 512;
    c.run.set_dtype(Of<std::string>({"fp32", "bf16", "fp64"}));
    c.run.set_threads(1);
    c.run.set_schedule(Of<v1::Schedule>({v1::REUSE, v1::REUSE, v1::DENSE}));
    c.run.set_head_chunk_tokens(static_cast<uint32_t>(Between(5, 40)));
    c.run.set_wave_suffixes(static_cast<uint32_t>(Between(1, 3)));
    c.run.set_prefix_policy(Of<v1::TapePolicy>({v1::S0, v1::S1, v1::S2, v1::S3, v1::S4, v1::S5}));
    c.run.set_suffix_policy(Of<v1::TapePolicy>({v1::S0, v1::S1, v1::S2, v1::S3, v1::S4}));
    if (Between(0, 1) == 1) c.run.set_prefix_block_rows(static_cast<uint32_t>(Between(5, 30)));
    c.run.set_memory_budget_bytes(uint64_t{1} << 30);
    c.run.set_split_groups(v1::SPLIT_OFF);
    c.run.mutable_mesh()->set_tp(static_cast<uint32_t>(tp));
    c.run.mutable_mesh()->set_dp(tp == 2 ? static_cast<uint32_t>(Between(1, 2)) : 1);
    for (int64_t i = Between(1, 3); i > 0; --i) c.prompts.push_back(Between(1, 40));
    for (int64_t i = Between(1, 4); i > 0; --i) c.responses.push_back(Between(1, 25));
    c.entry_pass = Between(0, 1) == 1;
    c.whole_rollouts = Between(0, 1) == 1;
    return c;
  }
};

// The cp, pp, tp and kv communicators of all ranks of a run; the engines own them.
class Communicators {
 public:
  std::unique_ptr<Communicator> Add(std::unique_ptr<Communicator> made) {
    const std::lock_guard lock(mutex_);
    all_.push_back(made.get());
    return made;
  }
  // Returns what each rank has sent on the axis under a name, in order of size.
  std::vector<int64_t> Sent(const std::string& axis, const std::string& name) const {
    std::vector<int64_t> sent;
    for (const Communicator* one : all_) {
      if (!one->axis().starts_with(axis)) continue;
      const auto totals = one->stats().Read();
      const auto found = totals.find(name);
      sent.push_back(found == totals.end() ? 0 : found->second.sent);
    }
    std::sort(sent.begin(), sent.end());
    return sent;
  }

 private:
  std::mutex mutex_;
  std::vector<const Communicator*> all_;
};

PrefixShape PrefixOf(const Case& c, const v1::Cluster& cluster) {
  PrefixShape prefix = {.block_rows = cluster.prefix_block_rows(),
                        .policy = cluster.prefix_policy(),
                        .regather = cluster.regather_prefix()};
  for (const uint32_t group : cluster.prefix_groups()) {
    prefix.lengths.push_back(c.prompts[group] - 1);
    prefix.rows += prefix.lengths.back();
  }
  return prefix;
}

// The rows that a rank runs of the rollouts of a wave; 0: it is another rank's.
int64_t SuffixRowsOf(const Case& c, const v1::Wave& wave, const MeshPlace& place) {
  if (wave.cut_rows()) {
    const int64_t all = c.responses[wave.members(0).rollout()], ranks = CpSize(c.run.mesh());
    return ContextRowsOfRanks(DealCutRows(all, ranks), 0, all, ranks)[place.cp_rank];
  }
  int64_t rows = 0;
  for (const v1::WaveMember& member : wave.members()) rows += c.responses[member.rollout()];
  return wave.cp_rank() == place.cp_rank ? rows : 0;
}

// The rows before them of trajectories that run their prefixes themselves.
int64_t OwnPrefixRows(const Case& c, const v1::Cluster& cluster, const v1::Wave& wave) {
  int64_t rows = 0;
  for (const v1::WaveMember& member : wave.members()) rows += c.prompts[member.group()] - 1;
  return cluster.prefix_groups().empty() ? rows : 0;
}

// What the waves and prefixes of one rank of a copy send over tp.
TensorSentBytes TensorSentIn(const Case& c, const v1::StepPlan& plan, const MeshPlace& place, bool forward_only) {
  const ByteShape shape = StageShapes(c.model, c.run)[place.pp_rank];
  TensorSentBytes sent;
  for (const v1::Cluster& cluster : plan.clusters()) {
    if (cluster.dp_rank() != place.dp_rank) continue;
    const PrefixShape prefix = PrefixOf(c, cluster);
    sent += PrefixForwardTensorSent(shape, prefix, place.cp_rank);
    if (!forward_only) sent += PrefixBackwardTensorSent(shape, prefix, place.cp_rank);
    for (const v1::Wave& wave : cluster.waves()) {
      const int64_t rows = SuffixRowsOf(c, wave, place), kv_only = OwnPrefixRows(c, cluster, wave);
      if (rows == 0) continue;
      sent += WaveForwardTensorSent(shape, rows + kv_only, kv_only, /*entropy=*/!forward_only);
      if (!forward_only) sent += WaveBackwardTensorSent(shape, rows + kv_only, kv_only, cluster.suffix_policy());
    }
  }
  return sent;
}

// What each context-parallel rank of a copy sends over cp.
ContextSentBytes ContextSentIn(const Case& c, const v1::StepPlan& plan, const MeshPlace& place, bool forward_only) {
  const ByteShape shape = StageShapes(c.model, c.run)[place.pp_rank];
  ContextSentBytes sent;
  for (const v1::Cluster& cluster : plan.clusters()) {
    if (cluster.dp_rank() != place.dp_rank) continue;
    const PrefixShape prefix = PrefixOf(c, cluster);
    sent += PrefixForwardContextSent(shape, prefix);
    if (!forward_only) sent += PrefixBackwardContextSent(shape, prefix);
    std::map<uint32_t, int64_t> waves_of_ranks;
    int64_t rounds = 0;
    for (const v1::Wave& wave : cluster.waves()) {
      if (!wave.cut_rows()) rounds = std::max(rounds, ++waves_of_ranks[wave.cp_rank()]);
    }
    for (const v1::Wave& wave : cluster.waves()) {
      if (!wave.cut_rows()) continue;
      ++rounds;
      const int64_t rows = c.responses[wave.members(0).rollout()];
      sent += CutForwardContextSent(shape, rows);
      if (!forward_only) sent += CutBackwardContextSent(shape, rows);
    }
    for (int64_t round = 0; round < rounds; ++round) {
      sent += RoundForwardContextSent(shape, prefix);
      if (!forward_only) sent += RoundBackwardContextSent(shape, prefix);
    }
  }
  return sent;
}

// What one rank of a stage sends to the stages beside it.
PipelineSentBytes PipelineSentIn(const Case& c, const v1::StepPlan& plan, const MeshPlace& place, bool forward_only) {
  const ByteShape shape = StageShapes(c.model, c.run)[place.pp_rank];
  PipelineSentBytes sent;
  for (const v1::Cluster& cluster : plan.clusters()) {
    if (cluster.dp_rank() != place.dp_rank) continue;
    sent += PrefixPipelineSent(shape, PrefixOf(c, cluster), place.cp_rank);
    for (const v1::Wave& wave : cluster.waves()) {
      const int64_t rows = SuffixRowsOf(c, wave, place);
      if (rows > 0) sent += WavePipelineSent(shape, rows + OwnPrefixRows(c, cluster, wave));
    }
  }
  if (forward_only) sent.backward = sent.backward_messages = 0;
  return sent;
}

// The planned bytes of each rank, in order of size. sent_in: one of the three above.
template <typename Sent>
std::vector<int64_t> OfRanks(const Case& c, const v1::Plan& plan,
                             Sent (*sent_in)(const Case&, const v1::StepPlan&, const MeshPlace&, bool),
                             int64_t Sent::*part) {
  std::vector<int64_t> bytes;
  for (uint32_t rank = 0; rank < NumRanks(c.run.mesh()); ++rank) {
    const MeshPlace place = PlaceOf(c.run.mesh(), rank);
    Sent sent = sent_in(c, plan.steps(0), place, /*forward_only=*/false);
    if (plan.has_log_prob_pass()) sent += sent_in(c, plan.log_prob_pass(), place, /*forward_only=*/true);
    bytes.push_back(sent.*part);
  }
  std::sort(bytes.begin(), bytes.end());
  return bytes;
}

// The gradients that each rank sends because others have parts of them, in order of size.
std::vector<int64_t> PartialOfRanks(const Case& c, int64_t PartialGradientBytes::*part) {
  const v1::Mesh& mesh = c.run.mesh();
  std::vector<int64_t> bytes;
  for (uint32_t rank = 0; rank < NumRanks(mesh); ++rank) {
    const MeshPlace place = PlaceOf(mesh, rank);
    const auto shard = MakeModelShard(c.model, {.tp_rank = place.tp_rank,
                                                .tp_size = TpSize(mesh),
                                                .pp_rank = place.pp_rank,
                                                .pp_size = PpSize(mesh),
                                                .ep_size = EpSize(mesh)});
    bytes.push_back(PartialGradientsSent(*shard, RankShape(c.model, c.run).accumulate_bytes).*part);
  }
  std::sort(bytes.begin(), bytes.end());
  return bytes;
}

void ExpectTensorParallelBytes(const Case& c, const v1::Plan& plan, const Communicators& communicators) {
  EXPECT_EQ(communicators.Sent("tp", worker::kRowsName), OfRanks(c, plan, TensorSentIn, &TensorSentBytes::rows));
  EXPECT_EQ(communicators.Sent("tp", worker::kRowSumsName), OfRanks(c, plan, TensorSentIn, &TensorSentBytes::row_sums));
  EXPECT_EQ(communicators.Sent("tp", worker::kVocabularyName),
            OfRanks(c, plan, TensorSentIn, &TensorSentBytes::vocabulary));
  EXPECT_EQ(communicators.Sent("tp", worker::kPartialGradientsName), PartialOfRanks(c, &PartialGradientBytes::all));
  EXPECT_GT(communicators.Sent("tp", worker::kPartialGradientsName).front(), 0);
  const auto of_kv = communicators.Sent("kv", worker::kPartialGradientsName);
  if (of_kv.empty()) return;
  EXPECT_EQ(of_kv, PartialOfRanks(c, &PartialGradientBytes::kv));
}

// Returns how many rollouts are cut by rows.
int RunCase(const Case& c, const std::string& directory) {
  std::filesystem::remove_all(directory);
  CHECK(WriteRandomModel(c.model, {}, directory).ok());
  Communicators communicators;
  InProcessOptions options;
  options.run = c.run;
  options.run.set_model(directory);
  options.context.seed = c.context_seed;
  options.edit_cp_communicator = options.edit_pp_communicator = options.edit_tp_communicator =
      [&](std::unique_ptr<Communicator> made) { return communicators.Add(std::move(made)); };
  const auto engine = InProcess::Create(options, MakeCpuBackend());
  CHECK(engine.ok()) << engine.status();
  TrainingRequest request = SyntheticRequest(c.prompts, c.responses, c.model.vocab_size);
  if (c.whole_rollouts) request.update.mutable_loss()->set_loss_mode("gspo");
  if (c.entry_pass || c.whole_rollouts) {
    request.update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
    request.update.mutable_old()->set_weights("policy");
  }
  CHECK((*engine)->Load(std::move(request)).ok());
  const v1::Plan& plan = (*engine)->plan().plan;
  const auto vote = (*engine)->Prepare(0);
  CHECK(vote.ok() && vote->yes()) << vote.status();
  if (TpSize(c.run.mesh()) > 1) ExpectTensorParallelBytes(c, plan, communicators);
  EXPECT_EQ(communicators.Sent("cp", worker::kPrefixKvName),
            OfRanks(c, plan, ContextSentIn, &ContextSentBytes::prefix_kv));
  EXPECT_EQ(communicators.Sent("cp", worker::kPrefixGradientsName),
            OfRanks(c, plan, ContextSentIn, &ContextSentBytes::prefix_gradients));
  EXPECT_EQ(communicators.Sent("cp", worker::kCutKvName), OfRanks(c, plan, ContextSentIn, &ContextSentBytes::cut_kv));
  EXPECT_EQ(communicators.Sent("cp", worker::kCutGradientsName),
            OfRanks(c, plan, ContextSentIn, &ContextSentBytes::cut_gradients));
  EXPECT_EQ(communicators.Sent("cp", worker::kCutLogProbsName),
            OfRanks(c, plan, ContextSentIn, &ContextSentBytes::cut_log_probs));
  EXPECT_EQ(communicators.Sent("pp", worker::kHiddenName),
            OfRanks(c, plan, PipelineSentIn, &PipelineSentBytes::forward));
  EXPECT_EQ(communicators.Sent("pp", worker::kHiddenGradientsName),
            OfRanks(c, plan, PipelineSentIn, &PipelineSentBytes::backward));
  EXPECT_EQ(communicators.Sent("pp", worker::kPartialGradientsName), PartialOfRanks(c, &PartialGradientBytes::stages));
  int cut = 0;
  for (const v1::Cluster& cluster : plan.steps(0).clusters()) {
    for (const v1::Wave& wave : cluster.waves()) cut += wave.cut_rows() ? 1 : 0;
  }
  return cut;
}

TEST(SentBytesTest, AreThoseThatCommunicatorsCount) {
  const int flag = GTEST_FLAG_GET(random_seed);
  const uint32_t seed = flag > 0 ? static_cast<uint32_t>(flag) : 1;
  const std::string directory = ::testing::TempDir() + "/sent-bytes-" + std::to_string(seed);
  CaseDraw draw(seed);
  for (int i = 0; i < kCasesPerSeed; ++i) {
    const Case c = draw.One();
    SCOPED_TRACE(absl::StrCat("--gtest_random_seed=", seed, " case ", i, ": ", c.text()));
    RunCase(c, directory);
  }
  std::filesystem::remove_all(directory);
}

TEST(SentBytesTest, ContextParallelRanksSendWhatTheFormulaSays) {
  const int flag = GTEST_FLAG_GET(random_seed);
  const uint32_t seed = flag > 0 ? static_cast<uint32_t>(flag) : 1;
  const std::string directory = ::testing::TempDir() + "/context-sent-bytes-" + std::to_string(seed);
  CaseDraw draw(seed);
  int cut = 0;
  for (int i = 0; i < kCasesPerSeed; ++i) {
    Case c = draw.One();
    *c.run.mutable_mesh() = MakeMesh(
        {.cp = static_cast<uint32_t>(draw.Between(2, 4)), .tp = draw.Between(0, 3) == 0 ? c.run.mesh().tp() : 1});
    c.run.set_prefix_kv(draw.Of<v1::PrefixKv>({v1::PREFIX_KV_HOLD, v1::PREFIX_KV_REGATHER}));
    c.context_seed = static_cast<uint32_t>(draw.Between(0, 99));
    SCOPED_TRACE(absl::StrCat("--gtest_random_seed=", seed, " case ", i, ": ", c.text()));
    cut += RunCase(c, directory);
  }
  std::filesystem::remove_all(directory);
  EXPECT_GT(cut, 0);
}

TEST(SentBytesTest, StagesSendWhatTheFormulaSays) {
  const int flag = GTEST_FLAG_GET(random_seed);
  const uint32_t seed = flag > 0 ? static_cast<uint32_t>(flag) : 1;
  const std::string directory = ::testing::TempDir() + "/stage-sent-bytes-" + std::to_string(seed);
  CaseDraw draw(seed);
  int cut = 0;
  for (int i = 0; i < kCasesPerSeed; ++i) {
    Case c = draw.One();
    c.model.num_layers = draw.Between(2, 5);
    c.model.tie_word_embeddings = draw.Chance(50);
    *c.run.mutable_mesh() =
        MakeMesh({.dp = static_cast<uint32_t>(draw.Between(1, 2)),
                  .pp = static_cast<uint32_t>(draw.Between(2, std::min<int64_t>(3, c.model.num_layers))),
                  .cp = static_cast<uint32_t>(draw.Between(1, 2)),
                  .tp = draw.Chance(30) ? c.run.mesh().tp() : 1});
    c.context_seed = static_cast<uint32_t>(draw.Between(0, 9));
    SCOPED_TRACE(absl::StrCat("--gtest_random_seed=", seed, " case ", i, ": ", c.text()));
    cut += RunCase(c, directory);
  }
  std::filesystem::remove_all(directory);
  EXPECT_GT(cut, 0);
}

TEST(SentBytesTest, OneRankSendsNothing) {
  const ModelConfig model = SyntheticModel({});
  v1::RunConfig run;
  run.set_dtype("fp32");
  run.set_head_chunk_tokens(128);
  const ByteShape shape = RankShape(model, run);
  TensorSentBytes sent = PrefixForwardTensorSent(shape, {.rows = 100, .policy = v1::S5});
  sent += PrefixBackwardTensorSent(shape, {.rows = 100, .policy = v1::S5});
  sent += WaveForwardTensorSent(shape, 50, 20, /*entropy=*/true);
  sent += WaveBackwardTensorSent(shape, 50, 20, v1::S4);
  EXPECT_EQ(sent.total(), 0);
  EXPECT_EQ(sent.row_collectives + sent.head_collectives, 0);
  EXPECT_EQ(PartialGradientsSent(WholeModel(model), 4).all, 0);
}

}  // namespace
}  // namespace stemma::testing
