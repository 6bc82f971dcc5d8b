// Damaged input of every reader in common/: an error or a value, never a crash (run it under the asan preset), and what
// is accepted keeps the reader's promises.
#include <random>
#include <string>

#include "common/base/arrays.h"
#include "common/base/run_config.h"
#include "common/model/model_config.h"
#include "common/model/model_init.h"
#include "common/model/safetensors.h"
#include "common/trace/trace_json.h"
#include "gtest/gtest.h"
#include "tests/common/model/small_configs.h"

namespace stemma {
namespace {

constexpr int kRounds = 5000;

// One to four edits: a byte changed, removed, doubled, or a piece copied elsewhere.
std::string Damaged(std::string text, std::mt19937& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (size_t edits = 1 + below(4); edits > 0 && text.size() > 2; --edits) {
    const size_t at = below(text.size());
    switch (below(4)) {
      case 0:
        text[at] = below(2) == 0 ? static_cast<char>(random()) : "0123456789-.eE{}[]\",:ntf\n \\"[below(27)];
        break;
      case 1:
        text.erase(at, 1 + below(3));
        break;
      case 2:
        text.insert(at, 1, text[at]);
        break;
      default:
        text.insert(at, text.substr(below(text.size()), 1 + below(30)));
    }
  }
  return text;
}

TEST(MutationTest, AcceptedConfigsHavePositiveSizesThatFit) {
  std::mt19937 random(1);
  int accepted = 0;
  for (const ModelConfig& source : {SmallLlama(), SmallQwen2(), SmallQwen3()}) {
    const std::string text = ModelConfigJson(source);
    for (int round = 0; round < kRounds; ++round) {
      const auto config = ParseModelConfig(Damaged(text, random));
      if (!config.ok()) continue;
      ++accepted;
      EXPECT_GT(config->num_parameters(), 0);
      EXPECT_EQ(config->num_heads % config->num_kv_heads, 0);
      EXPECT_EQ(config->head_size % 2, 0);
    }
  }
  EXPECT_GT(accepted, kRounds / 20);
}

TEST(MutationTest, AcceptedHeadersStayInsideTheFile) {
  std::mt19937 random(2);
  std::vector<safetensors::TensorEntry> tensors = {{.name = "a", .shape = {2, 3}}, {.name = "b", .shape = {4}}};
  const std::string file = safetensors::MakeHeader(tensors, {{"format", "pt"}}) + std::string(40, 'x');
  int accepted = 0;
  for (int round = 0; round < 4 * kRounds; ++round) {
    const std::string damaged = Damaged(file, random);
    const auto header = safetensors::ParseHeader(damaged, damaged.size());
    if (!header.ok()) continue;
    ++accepted;
    for (const safetensors::TensorEntry& tensor : header->tensors) {
      EXPECT_LE(tensor.begin, tensor.end);
      EXPECT_LE(tensor.end, damaged.size());
    }
  }
  EXPECT_GT(accepted, kRounds / 100);
}

TEST(MutationTest, AcceptedTraceLinesAreWrittenAndReadBackTheSame) {
  std::mt19937 random(3);
  const std::string line =
      R"({"header":{"loss":{"loss_mode":"vanilla","temperature":1.0},"old":{"from":"CLIENT"},"seed":3},"groups":[)"
      R"({"uid":"g0","prompt_tokens":[5,6,7],"rollouts":[{"rollout_id":"r","response_tokens":[8,9],)"
      R"("response_mask":[1,0],"old_log_probs":[-1.2,-0.3],"ref_log_prob":"zczMvwAAgD8=","advantage":0.5}]}]})";
  int accepted = 0;
  for (int round = 0; round < 2 * kRounds; ++round) {
    const auto request = ParseTraceRequest(Damaged(line, random));
    if (!request.ok()) continue;
    const auto text = FormatTraceRequest(*request, TraceArrays::kBase64);
    ASSERT_TRUE(text.ok());
    const auto back = ParseTraceRequest(*text);
    ASSERT_TRUE(back.ok()) << *text << "\n" << back.status();
    EXPECT_EQ(*FormatTraceRequest(*back, TraceArrays::kBase64), *text);
    ++accepted;
  }
  EXPECT_GT(accepted, kRounds / 100);
}

TEST(MutationTest, RunConfigsAreReadOrReported) {
  std::mt19937 random(4);
  const std::string yaml = "model: m\ndtype: fp32\nschedule: auto\nthreads: 2\nlimits:\n  groups: 16\n  tokens: 100\n";
  int refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    ParsedRunConfig parsed = ParseRunConfig(Damaged(yaml, random));
    FillDefaults(parsed.config);
    Validate(parsed);
    refused += !ToStatus("run.yaml", parsed).ok();
  }
  EXPECT_GT(refused, kRounds / 20);
}

}  // namespace
}  // namespace stemma
