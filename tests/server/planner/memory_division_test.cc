// How a worker's memory is divided: by hand for an 8B model, whose numbers are known, and the refusals with their
// bytes.
#include "server/planner/memory_division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/cost/state_bytes.h"
#include "tests/common/model/small_configs.h"
#include "tests/testing/draw.h"

namespace stemma::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGB = 1'000'000'000;
constexpr int64_t kGiB = int64_t{1} << 30;

v1::RunConfig Bf16(int64_t budget_bytes = 0) {
  v1::RunConfig run;
  run.set_dtype("bf16");
  run.set_head_chunk_tokens(512);
  run.set_memory_budget_bytes(static_cast<uint64_t>(budget_bytes));
  return run;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(StateBytesTest, EightBillionParametersTakeEighteenBytesEach) {
  const ModelConfig config = Llama3_8B();
  ASSERT_EQ(config.num_parameters(), 8'030'261'248);
  const StateBytes bf16 = StateBytesOf(config, RunDtype::kBf16), fp32 = StateBytesOf(config, RunDtype::kFp32),
                   fp64 = StateBytesOf(config, RunDtype::kFp64);
  EXPECT_EQ(bf16.weights + bf16.gradients + bf16.optimizer, 18 * config.num_parameters());
  EXPECT_EQ(bf16.device(v1::HOST), 6 * config.num_parameters() + bf16.tables);
  EXPECT_EQ(bf16.host(v1::HOST), 12 * config.num_parameters());
  EXPECT_EQ(fp32.weights + fp32.gradients + fp32.optimizer, 16 * config.num_parameters());
  EXPECT_EQ(fp64.weights + fp64.gradients + fp64.optimizer, 32 * config.num_parameters());
  EXPECT_EQ(bf16.apply(v1::DEVICE), 78 << 20) << "a slab of 20 M gradients";
  EXPECT_EQ(bf16.apply(v1::HOST), 160 << 20) << "a slab of 4 M gradients, and three of two moments and a master";
  EXPECT_EQ(fp32.apply(v1::DEVICE), 1 << 20) << "smaller slabs where there are no masters apart";
  EXPECT_EQ(bf16.tables, 8192 * 128 * 4) << "64 cosines and sines of fp32 for each position";
}

// Logits are 4 bytes each, 8 in fp64, and a tensor-parallel rank has its part of them.
TEST(DivideMemoryTest, ADeviceHasTheLongestHeadChunksOfASixtyFourthOfItsMemory) {
  const uint32_t seed = testing::FirstSeed();
  testing::Draw draw(seed);
  std::map<uint32_t, int> drawn;
  for (int i = 0; i < 200; ++i) {
    ModelConfig model = Llama3_8B();
    model.vocab_size = draw.LogBetween(1000, 300'000) / 4 * 4;
    v1::RunConfig run = Bf16();
    run.clear_head_chunk_tokens();
    run.set_dtype(draw.Of<std::string>({"bf16", "fp32"}));
    run.mutable_mesh()->set_tp(static_cast<uint32_t>(draw.Of<int>({1, 2, 4})));
    const int64_t card = draw.LogBetween(16, 200) * kGB;
    const bool given = draw.Chance(50);
    if (given) run.set_memory_budget_bytes(static_cast<uint64_t>(card / 2));
    const WorkerMemory memory = {card - kGB, 2000 * kGB, card};
    const auto divided = DivideMemory(model, memory, run);
    if (!divided.ok()) continue;
    const int64_t row_bytes = model.vocab_size / run.mesh().tp() * 4, most = (given ? card / 2 : card) / 64;
    const uint32_t longest = 2048 * row_bytes <= most ? 2048 : 1024 * row_bytes <= most ? 1024 : 512;
    EXPECT_EQ(divided->head_chunk_tokens(), longest)
        << "seed " << seed << ": " << model.vocab_size << " " << run.ShortDebugString();
    ++drawn[longest];
    run.set_head_chunk_tokens(77);
    EXPECT_EQ(DivideMemory(model, memory, run)->head_chunk_tokens(), 77u) << "what is given stays";
  }
  EXPECT_EQ(drawn.size(), 3u);
}

TEST(DivideMemoryTest, AMachineOfOneMemoryHasHeadChunksOf512Rows) {
  v1::RunConfig run = Bf16();
  run.clear_head_chunk_tokens();
  EXPECT_EQ(DivideMemory(Llama3_8B(), {2000 * kGiB, 0, 2000 * kGiB}, run)->head_chunk_tokens(), 512u);
  EXPECT_EQ(DivideMemory(Llama3_8B(), {79 * kGiB, 1000 * kGiB, 0}, run)->head_chunk_tokens(), 512u)
      << "a device that does not say what it has";
}

TEST(DivideMemoryTest, AnEightBModelOnOneCardHasItsOptimizerStatesInHostMemory) {
  for (const int64_t card : {80 * kGiB, 139 * kGiB}) {
    const auto run = DivideMemory(Llama3_8B(), {card, 1000 * kGiB}, Bf16());
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->optimizer_residency(), v1::HOST);
    EXPECT_EQ(run->memory_budget_bytes(), static_cast<uint64_t>(card - card / 16));
    EXPECT_EQ(ActivationBytes(Llama3_8B(), *run),
              card - card / 16 - StateBytesOf(Llama3_8B(), RunDtype::kBf16).device(v1::HOST));
    EXPECT_GT(run->host_memory_bytes(), static_cast<uint64_t>(96 * kGB));
    EXPECT_GT(HostTapeBytesMax(Llama3_8B(), *run), 100 * kGiB);
  }
}

TEST(DivideMemoryTest, StatesStayOnADeviceThatTakesThemAndTheLongestContext) {
  const auto run = DivideMemory(Llama3_8B(), {200 * kGiB, 1000 * kGiB}, Bf16());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->optimizer_residency(), v1::DEVICE);
  // 145 GB of state; the longest context of 8,192 tokens, half prompt and half response, takes some GB more.
  const int64_t state = StateBytesOf(Llama3_8B(), RunDtype::kBf16).device(v1::DEVICE);
  int64_t low = state, high = 200 * kGiB;  // the least budget that keeps the states on the device
  while (high - low > kGB / 100) {
    const int64_t middle = (low + high) / 2;
    const auto at = DivideMemory(Llama3_8B(), {200 * kGiB, 1000 * kGiB}, Bf16(middle));
    ASSERT_TRUE(at.ok()) << at.status();
    (at->optimizer_residency() == v1::DEVICE ? high : low) = middle;
  }
  // K/V and gK/gV of 4,096 prompt tokens: 131 kB in bf16 and 262 kB in fp32 each; the layer inputs and K/V of 4,096
  // response tokens 12,288 B a layer (S4): 1.6 + 1.6 GB, and a layer's working set.
  EXPECT_GT(high - state, 3 * kGB);
  EXPECT_LT(high - state, 6 * kGB);
}

TEST(DivideMemoryTest, WhatIsForcedStays) {
  v1::RunConfig run = Bf16(190 * kGiB);
  run.set_optimizer_residency(v1::HOST);
  run.set_host_memory_bytes(100 * kGiB);
  const auto divided = DivideMemory(Llama3_8B(), {200 * kGiB, 1000 * kGiB}, run);
  ASSERT_TRUE(divided.ok()) << divided.status();
  EXPECT_EQ(divided->optimizer_residency(), v1::HOST);
  EXPECT_EQ(divided->memory_budget_bytes(), static_cast<uint64_t>(190 * kGiB));
  EXPECT_EQ(divided->host_memory_bytes(), static_cast<uint64_t>(100 * kGiB));
}

TEST(DivideMemoryTest, WithoutABudgetOneMemoryKeepsTheStatesAndSharesTheRest) {
  const ModelConfig model = Llama3_8B();
  const int64_t state = StateBytesOf(model, RunDtype::kBf16).total();
  const auto run = DivideMemory(model, {state + 40 * kGiB, 0}, Bf16());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->optimizer_residency(), v1::DEVICE);
  EXPECT_EQ(ActivationBytes(model, *run), 20 * kGiB);
  EXPECT_EQ(HostTapeBytesMax(model, *run), 10 * kGiB);
}

TEST(DivideMemoryTest, OneMemoryUnderABudgetMovesTheStatesThatDoNotFitIt) {
  const auto run = DivideMemory(Llama3_8B(), {400 * kGiB, 0}, Bf16(64 * kGiB));
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->optimizer_residency(), v1::HOST);
  EXPECT_EQ(run->memory_budget_bytes(), static_cast<uint64_t>(64 * kGiB));
}

TEST(DivideMemoryTest, AMachineThatIsTooSmallIsRefusedWithItsBytes) {
  const int64_t params = Llama3_8B().num_parameters();
  const auto one = DivideMemory(Llama3_8B(), {24 * kGiB, 0}, Bf16());
  EXPECT_EQ(one.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(one.status()), HasSubstr(absl::StrCat("machine has ", 24 * kGiB, " bytes free")));
  EXPECT_THAT(Message(one.status()), HasSubstr(absl::StrCat(StateBytesOf(Llama3_8B(), RunDtype::kBf16).total())));
  const auto device = DivideMemory(Llama3_8B(), {40 * kGiB, 1000 * kGiB}, Bf16());
  EXPECT_EQ(device.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(device.status()), HasSubstr(absl::StrCat("device has ", 40 * kGiB, " bytes free")));
  EXPECT_THAT(Message(device.status()), HasSubstr("slabs of optimizer states 144 MiB"));
  const auto host = DivideMemory(Llama3_8B(), {80 * kGiB, 32 * kGiB}, Bf16());
  EXPECT_FALSE(host.ok());
  v1::RunConfig to_host = Bf16();
  to_host.set_optimizer_residency(v1::HOST);
  const auto forced = DivideMemory(Llama3_8B(), {80 * kGiB, 32 * kGiB}, to_host);
  EXPECT_EQ(forced.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(forced.status()), HasSubstr(absl::StrCat("host has ", 32 * kGiB, " bytes free")));
  EXPECT_THAT(Message(forced.status()), HasSubstr(absl::StrCat(12 * params)));
  const auto unknown = DivideMemory(Llama3_8B(), {0, 0}, Bf16());
  EXPECT_THAT(Message(unknown.status()), HasSubstr("set memory_budget_bytes"));
}

TEST(DivideMemoryTest, MoreThanTheDeviceHasIsRefusedWithBothNumbers) {
  const WorkerMemory card = {.device_free_bytes = 79 * kGiB, .host_free_bytes = 1000 * kGiB, .device_bytes = 80 * kGiB};
  EXPECT_TRUE(DivideMemory(Llama3_8B(), card, Bf16(80 * kGiB)).ok()) << "all of it, though not all is free";
  const auto refused = DivideMemory(Llama3_8B(), card, Bf16(80 * kGiB + 1));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused.status()), HasSubstr(absl::StrCat("memory_budget_bytes is ", 80 * kGiB + 1,
                                                                ", and the worker's device has ", 80 * kGiB)));
  v1::RunConfig both = Bf16(80 * kGiB);
  both.set_host_memory_bytes(200 * kGiB);
  EXPECT_TRUE(DivideMemory(Llama3_8B(), card, both).ok()) << "the host's memory is another";
  EXPECT_TRUE(DivideMemory(Llama3_8B(), {200 * kGiB, 0, 280 * kGiB}, both).ok()) << "exactly what there is";
  const auto shared = DivideMemory(Llama3_8B(), {200 * kGiB, 0, 280 * kGiB - 1}, both);
  EXPECT_THAT(Message(shared.status()),
              HasSubstr(absl::StrCat(280 * kGiB, " together, and the worker's machine has ", 280 * kGiB - 1)));
  EXPECT_TRUE(DivideMemory(Llama3_8B(), {200 * kGiB, 0}, both).ok()) << "it does not say what it has";
}

// Edges by hand: a plan of 1,000 bytes on the device and 100 in host memory.
TEST(PlanProblemTest, APlanFitsWhoeverHasWhatItNeeds) {
  const ModelConfig model = Llama3_8B();
  const StateBytes state = StateBytesOf(model, RunDtype::kBf16);
  v1::PlanReport report;
  report.mutable_state()->set_device(static_cast<uint64_t>(state.device(v1::HOST)));
  report.set_budget_bytes(report.state().device() + 5000);
  report.set_peak_bytes(900);
  report.set_peak_bytes_with_headroom(1000);
  report.add_steps()->add_clusters()->mutable_suffix()->set_host(100);
  const auto problem = [&](int64_t activations, int64_t tapes) {
    v1::RunConfig run = Bf16(state.device(v1::HOST) + activations);
    run.set_optimizer_residency(v1::HOST);
    run.set_host_memory_bytes(static_cast<uint64_t>(state.host(v1::HOST) + tapes));
    return PlanProblem(report, model, run);
  };
  EXPECT_EQ(problem(5000, 100), "") << "as it was made";
  EXPECT_EQ(problem(1000, 100), "");
  EXPECT_THAT(problem(999, 100),
              HasSubstr("needs 1000 bytes for activations; the worker that it was made for had 5000, "
                        "this one has 999"));
  EXPECT_THAT(problem(5000, 99), HasSubstr("needs 100 bytes of host memory for tapes; this worker has 99"));
  report.mutable_steps(0)->add_ranks()->add_stages()->set_host_bytes(101);  // two clusters of a stage at once
  EXPECT_THAT(problem(5000, 100), HasSubstr("needs 101 bytes of host memory for tapes; this worker has 100"));
  EXPECT_EQ(problem(5000, 101), "");
}

// 16 ranks of 8 billion parameters each hold a sixteenth of the moments and masters, and exchange 64 MiB at a time.
TEST(CheckMemoryTest, ARankOfAGangNeedsItsShareOfTheStates) {
  v1::RunConfig run = Bf16();
  run.set_optimizer_residency(v1::DEVICE);
  run.mutable_mesh()->set_dp(16);
  const StateBytes rank = StateBytesOf(Llama3_8B(), run);
  EXPECT_NEAR(static_cast<double>(rank.optimizer), 12.0 * 8'030'261'248 / 16, 1e-4 * 8e9);
  const int64_t least = rank.device_peak(v1::DEVICE);
  EXPECT_EQ(rank.device(v1::DEVICE), rank.weights + rank.gradients + rank.optimizer + rank.tables + rank.exchange);
  EXPECT_EQ(least, rank.device(v1::DEVICE) + (78 << 20)) << "a slab of clipped gradients";
  run.set_memory_budget_bytes(static_cast<uint64_t>(least + 1));
  EXPECT_TRUE(CheckMemory(Llama3_8B(), run).ok());
  EXPECT_EQ(ActivationBytes(Llama3_8B(), run), (78 << 20) + 1) << "its own buffers are there in all phases";
  run.set_memory_budget_bytes(static_cast<uint64_t>(least));
  EXPECT_THAT(Message(CheckMemory(Llama3_8B(), run)),
              HasSubstr("optimizer states 5.61 GiB, exchange between ranks 132 MiB, clipped gradients 78.0 MiB"));
  run.clear_mesh();
  run.set_memory_budget_bytes(static_cast<uint64_t>(least + 1));
  EXPECT_FALSE(CheckMemory(Llama3_8B(), run).ok()) << "one rank holds them all";
}

TEST(DivideMemoryTest, ACardThatIsTooSmallForAllStatesTakesARanksShare) {
  v1::RunConfig run = Bf16();
  run.set_optimizer_residency(v1::DEVICE);
  EXPECT_FALSE(DivideMemory(Llama3_8B(), {80 * kGiB, 1000 * kGiB}, run).ok());
  run.mutable_mesh()->set_dp(8);
  const auto divided = DivideMemory(Llama3_8B(), {80 * kGiB, 1000 * kGiB}, run);
  ASSERT_TRUE(divided.ok()) << divided.status();
  EXPECT_EQ(ActivationBytes(Llama3_8B(), *divided), 75 * kGiB - StateBytesOf(Llama3_8B(), run).device(v1::DEVICE));
}

// By hand: 8 ranks own 1 / 8 of 18 bytes a parameter; beside them slots of two layers and of the embedding, of 2 and of
// 4 bytes an element, and a reduction of the embedding.
TEST(StateBytesTest, ShardedParametersTakeTheirPartAndTheSlots) {
  const ModelConfig config = Llama3_8B();
  const int64_t embedding = 128256 * 4096, layer = 218'112'000;
  ASSERT_EQ(config.num_parameters(), 32 * layer + 2 * embedding + 4096);
  v1::RunConfig run = Bf16();
  run.mutable_mesh()->set_dp(8);
  run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
  const StateBytes state = StateBytesOf(config, run);
  const double part = static_cast<double>(config.num_parameters()) / 8, slots = 2.0 * (layer + 4096) + embedding;
  EXPECT_NEAR(static_cast<double>(state.weights), 2 * (part + slots), 1e-6 * 18e9);  // parts are rounded to 16 elements
  EXPECT_NEAR(static_cast<double>(state.gradients), 4 * (part + slots), 1e-6 * 18e9);
  EXPECT_NEAR(static_cast<double>(state.optimizer), 12 * part, 1e-6 * 18e9);
  EXPECT_EQ(state.exchange, 4 * embedding);
  EXPECT_EQ(state.gathering, 2 * embedding);
  EXPECT_EQ(state.device_peak(v1::DEVICE), state.device(v1::DEVICE) + state.gathering) << "more than APPLY's slab";
  run.mutable_mesh()->set_dp(1);
  EXPECT_EQ(StateBytesOf(config, run).total(), StateBytesOf(config, RunDtype::kBf16).total()) << "one rank has nobody";
}

TEST(DivideMemoryTest, ParametersAreShardedWhereTheLongestContextDoesNotFitElse) {
  v1::RunConfig run = Bf16();
  run.mutable_mesh()->set_dp(8);
  run.set_shard_parameters(v1::SHARD_PARAMETERS_AUTO);
  const auto divided = [&](int64_t card) {
    const auto answer = DivideMemory(Llama3_8B(), {card, 1000 * kGiB}, run);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return *answer;
  };
  EXPECT_EQ(divided(139 * kGiB).shard_parameters(), v1::SHARD_PARAMETERS_OFF);
  EXPECT_EQ(divided(40 * kGiB).shard_parameters(), v1::SHARD_PARAMETERS_ON);
  EXPECT_EQ(divided(40 * kGiB).optimizer_residency(), v1::DEVICE) << "they are divided, and fit";
  // The border is where states are sent to host memory if nothing else is left.
  run.set_shard_parameters(v1::SHARD_PARAMETERS_OFF);
  int64_t low = 60 * kGiB, high = 139 * kGiB;
  while (high - low > kGiB / 16) {
    const int64_t middle = (low + high) / 2;
    (divided(middle).optimizer_residency() == v1::DEVICE ? high : low) = middle;
  }
  run.set_shard_parameters(v1::SHARD_PARAMETERS_AUTO);
  EXPECT_EQ(divided(high).shard_parameters(), v1::SHARD_PARAMETERS_OFF);
  EXPECT_EQ(divided(low).shard_parameters(), v1::SHARD_PARAMETERS_ON);
  run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
  EXPECT_EQ(divided(139 * kGiB).shard_parameters(), v1::SHARD_PARAMETERS_ON) << "who asks for it gets it";
  run.set_shard_parameters(v1::SHARD_PARAMETERS_AUTO);
  run.mutable_mesh()->set_dp(1);
  EXPECT_FALSE(ShardsParameters(divided(60 * kGiB))) << "one rank has nobody";
  // A small model whose longest context does not fit in any way: its parameters are not what is in the way.
  ModelConfig small = Llama3_8B();
  small.hidden_size = 64;
  small.ffn_size = 128;
  small.num_layers = 2;
  small.vocab_size = 128;
  small.max_positions = 1 << 20;
  run.mutable_mesh()->set_dp(8);
  const auto answer = DivideMemory(small, {kGiB, 1000 * kGiB}, run);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->shard_parameters(), v1::SHARD_PARAMETERS_OFF);
}

// What only sharding makes fit is not refused before the workers are there, unless it is off.
TEST(CheckMemoryTest, ABudgetThatTakesShardedParametersIsEnough) {
  v1::RunConfig run = Bf16(30 * kGiB);
  run.mutable_mesh()->set_dp(8);
  for (const auto& [sharding, fits] : {std::pair(v1::SHARD_PARAMETERS_AUTO, true),
                                       {v1::SHARD_PARAMETERS_ON, true},
                                       {v1::SHARD_PARAMETERS_OFF, false}}) {
    run.set_shard_parameters(sharding);
    EXPECT_EQ(CheckMemory(Llama3_8B(), run).ok(), fits) << v1::ShardParameters_Name(sharding);
    const auto divided = DivideMemory(Llama3_8B(), {80 * kGiB, 1000 * kGiB}, run);
    EXPECT_EQ(divided.ok(), fits) << v1::ShardParameters_Name(sharding);
    if (fits) {
      EXPECT_EQ(divided->shard_parameters(), v1::SHARD_PARAMETERS_ON);
    }
  }
  v1::PlanReport report;
  report.set_shards_parameters(false);
  run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
  EXPECT_THAT(PlanProblem(report, Llama3_8B(), run),
              HasSubstr("for whole parameters; these workers have sharded ones"));
}

TEST(CheckMemoryTest, ABudgetBelowTheStateNamesItsParts) {
  const int64_t least = StateBytesOf(Llama3_8B(), RunDtype::kBf16).device_peak(v1::HOST);
  EXPECT_TRUE(CheckMemory(Llama3_8B(), Bf16()).ok()) << "by the device";
  EXPECT_TRUE(CheckMemory(Llama3_8B(), Bf16(least + 1)).ok());
  const absl::Status status = CheckMemory(Llama3_8B(), Bf16(least));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr(absl::StrCat("memory_budget_bytes is ", least)));
  EXPECT_THAT(Message(status),
              HasSubstr(absl::StrCat("needs more than ", least,
                                     " bytes on the device with optimizer states in host memory (weights 15.0 GiB, ",
                                     "gradients 29.9 GiB, slabs of optimizer states 144 MiB, clipped gradients 16.0 "
                                     "MiB, RoPE tables 4.00 MiB;")));
  v1::RunConfig device = Bf16(100 * kGiB);
  device.set_optimizer_residency(v1::DEVICE);
  EXPECT_THAT(Message(CheckMemory(Llama3_8B(), device)), HasSubstr("optimizer states 89.7 GiB"));
}

TEST(CheckMemoryTest, AHostMemoryBelowTheStatesThatAreForcedThereIsNamed) {
  v1::RunConfig run = Bf16();
  run.set_host_memory_bytes(1000);
  EXPECT_TRUE(CheckMemory(Llama3_8B(), run).ok()) << "the states may stay on the device";
  run.set_optimizer_residency(v1::HOST);
  EXPECT_THAT(Message(CheckMemory(Llama3_8B(), run)), HasSubstr("host_memory_bytes is 1000"));
  const int64_t states = StateBytesOf(Llama3_8B(), RunDtype::kBf16).host(v1::HOST);
  run.set_host_memory_bytes(static_cast<uint64_t>(states));
  EXPECT_TRUE(CheckMemory(Llama3_8B(), run).ok()) << "exactly the states";
  run.set_host_memory_bytes(static_cast<uint64_t>(states - 1));
  EXPECT_FALSE(CheckMemory(Llama3_8B(), run).ok());
  run.set_host_memory_bytes(1000);
  run.clear_optimizer_residency();
  run.set_memory_budget_bytes(static_cast<uint64_t>(60 * kGiB));
  EXPECT_THAT(Message(CheckMemory(Llama3_8B(), run)), HasSubstr("host_memory_bytes cannot take optimizer states"));
}

}  // namespace
}  // namespace stemma::server
