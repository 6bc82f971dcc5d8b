// Models, meshes, requests and budgets of whole gangs, drawn, and the engines that run them: the ranks are threads;
// server and worker are the product's own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/base/mesh.h"
#include "common/cost/state_bytes.h"
#include "common/model/model_init.h"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/worker/engine/bytes_cases.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {

// Makes the case one of a whole gang of up to four ranks.
inline Case DrawGangCase(Draw& draw) {
  Case c = DrawCase(draw);
  const auto axis = [&] { return static_cast<uint32_t>(draw.Of<int64_t>({1, 1, 2})); };
  MeshSizes sizes;
  do {
    sizes = {.dp = draw.Chance(60) ? 2u : 1u, .pp = axis(), .cp = axis(), .tp = axis()};
  } while (sizes.dp * sizes.pp * sizes.cp * sizes.tp > 4);
  *c.run.mutable_mesh() = MakeMesh(sizes);
  ModelConfig& m = c.model;
  m.num_layers = draw.Between(sizes.pp, 4);
  m.num_kv_heads = draw.Of<int64_t>({2, 4});
  m.num_heads = m.num_kv_heads * draw.Of<int64_t>({1, 2});
  m.ffn_size = 8 * sizes.tp * draw.Between(2, m.experts ? 8 : 24);
  m.head_size = 16;
  if (!m.qk_norm) m.hidden_size = m.num_heads * m.head_size;
  c.run.set_dtype(draw.Of<std::string>({"bf16", "bf16", "bf16", "fp32"}));
  c.run.set_optimizer_residency(v1::DEVICE);
  c.run.set_schedule(draw.Of<v1::Schedule>({v1::REUSE, v1::REUSE, v1::REUSE, v1::DENSE}));
  c.run.set_split_groups(draw.Of<v1::Split>({v1::SPLIT_AUTO, v1::SPLIT_ON, v1::SPLIT_OFF}));
  if (sizes.dp * sizes.cp > 1 && draw.Chance(30)) c.run.set_shard_parameters(v1::SHARD_PARAMETERS_ON);
  if (sizes.cp > 1) c.run.set_prefix_kv(draw.Of<v1::PrefixKv>({v1::PREFIX_KV_AUTO, v1::PREFIX_KV_REGATHER}));
  c.run.set_threads(1);
  c.prompts.clear();
  c.responses.clear();
  for (int64_t i = draw.Between(2, 4); i > 0; --i) c.prompts.push_back(draw.LogBetween(20, 500));
  for (int64_t i = draw.Between(1, 5); i > 0; --i) c.responses.push_back(draw.LogBetween(2, 120));
  if (draw.Chance(50)) c.budget_of_ample = static_cast<double>(draw.Between(15, 80)) / 100;
  return c;
}

class GangCaseTest : public ::testing::Test {
 protected:
  // Returns an engine of the case's ranks with the request loaded. Null: no plan fits the budget.
  std::unique_ptr<InProcess> Load(
      const Case& c, const TrainingRequest& request, InProcessOptions options = {},
      const std::function<Backend()>& backend = [] { return MakeCpuBackend(); }) {
    options.run = c.run;
    options.run.set_model(directory_);
    const StateBytes state = StateBytesOf(c.model, c.run);
    auto kept = static_cast<uint64_t>(state.device(v1::DEVICE) + state.apply(v1::DEVICE));
    if (request.kind == TrainingRequest::Kind::kVerify) {
      kept += static_cast<uint64_t>(KeptGradientBytes(c.model, c.run));
    }
    options.run.set_memory_budget_bytes(kept + (uint64_t{2} << 30));
    std::filesystem::remove_all(directory_);
    EXPECT_TRUE(WriteRandomModel(c.model, {}, directory_).ok());
    for (const bool tight : {false, true}) {
      if (tight && c.budget_of_ample == 0) break;
      auto engine = InProcess::Create(options, backend());
      EXPECT_TRUE(engine.ok()) << engine.status();
      const absl::Status loaded = engine.ok() ? (*engine)->Load(request) : engine.status();
      if (!loaded.ok()) return nullptr;
      if (tight || c.budget_of_ample == 0) return *std::move(engine);
      const auto ample = static_cast<double>((*engine)->plan().report.peak_bytes());
      options.run.set_memory_budget_bytes(kept + static_cast<uint64_t>(c.budget_of_ample * ample));
    }
    return nullptr;
  }

  void TearDown() override { std::filesystem::remove_all(directory_); }

  const std::string directory_ =
      ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->test_suite_name();
};

}  // namespace stemma::testing
