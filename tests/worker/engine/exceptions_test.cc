// No exception crosses the engine: whatever is thrown below becomes the vote of the step, and the engine goes on.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <new>
#include <stdexcept>

#include "common/model/model_init.h"
#include "nlohmann/json.hpp"
#include "tests/testing/in_process.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/synthetic.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

// The product's attention, which throws what it is told to.
class ThrowingAttention : public CpuAttention {
 public:
  explicit ThrowingAttention(std::function<void()>& thrower) : thrower_(thrower) {}
  Output Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                 double scale) const override {
    thrower_();
    return CpuAttention::Forward(q, k, v, causal, scale);
  }

 private:
  std::function<void()>& thrower_;
};

struct Thrown {
  std::function<void()> thrower;
  internal::v1::NoVoteReason reason;
};

TEST(ExceptionsTest, EachKindIsTheStepsAnswerAndTheNextStepIsMade) {
  const std::string directory = ::testing::TempDir() + "/exceptions";
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(WriteRandomModel(SyntheticModel({}), {}, directory).ok());
  InProcessOptions options;
  options.run.set_model(directory);
  options.run.set_dtype("fp32");
  options.run.set_head_chunk_tokens(128);
  options.run.set_threads(1);
  std::function<void()> thrower = [] {};
  auto engine = InProcess::Create(options, MakeCpuBackend(std::make_unique<ThrowingAttention>(thrower)));
  ASSERT_TRUE(engine.ok()) << engine.status();
  const std::vector<Thrown> kinds = {
      {[] { TORCH_CHECK(false, "of LibTorch"); }, internal::v1::INTERNAL},
      {[] { throw std::bad_alloc(); }, internal::v1::OUT_OF_MEMORY},
      {[] { throw std::runtime_error("of a library"); }, internal::v1::INTERNAL},
      {[] { nlohmann::json("text")["key"] = 1; }, internal::v1::INTERNAL},
  };
  TrainingRequest request = SyntheticRequest({16}, {8, 8}, SyntheticModel({}).vocab_size);
  request.update.mutable_adam()->set_learning_rate(1e-3);
  request.update.mutable_adam()->set_eps(1e-8);
  ASSERT_TRUE((*engine)->Load(std::move(request)).ok());
  for (const Thrown& kind : kinds) {
    thrower = kind.thrower;
    const auto vote = (*engine)->Prepare(0);
    ASSERT_TRUE(vote.ok()) << vote.status();
    EXPECT_FALSE(vote->yes());
    EXPECT_EQ(vote->no_reason(), kind.reason);
    EXPECT_FALSE(vote->message().empty());
  }
  thrower = [] {};
  const auto vote = (*engine)->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  EXPECT_TRUE((*engine)->Apply(0, *vote).ok());
  std::filesystem::remove_all(directory);
}

// Tokens index the embedding and the logits: one that the server let pass is the step's answer, not a read beyond them.
TEST(ExceptionsTest, ATokenOutsideTheVocabularyIsTheStepsAnswer) {
  const std::string directory = ::testing::TempDir() + "/tokens";
  std::filesystem::remove_all(directory);
  const ModelConfig model = SyntheticModel({});
  ASSERT_TRUE(WriteRandomModel(model, {}, directory).ok());
  InProcessOptions options;
  options.run.set_model(directory);
  options.run.set_dtype("fp32");
  options.run.set_head_chunk_tokens(128);
  options.run.set_threads(1);
  auto engine = InProcess::Create(options, MakeCpuBackend());
  ASSERT_TRUE(engine.ok()) << engine.status();
  for (const int32_t token : {-1, static_cast<int32_t>(model.vocab_size), 1 << 30}) {
    TrainingRequest request = SyntheticRequest({16}, {8, 8}, model.vocab_size);
    // The last response token is a target only: no embedding reads it.
    std::string& response = *request.groups[0].mutable_rollouts(0)->mutable_response_tokens();
    response.replace(response.size() - sizeof(token), sizeof(token), reinterpret_cast<const char*>(&token),
                     sizeof(token));
    ASSERT_TRUE((*engine)->Load(std::move(request)).ok());
    const auto vote = (*engine)->Prepare(0);
    ASSERT_TRUE(vote.ok()) << vote.status();
    EXPECT_FALSE(vote->yes());
    EXPECT_NE(vote->message().find("token " + std::to_string(token)), std::string::npos) << vote->message();
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace stemma::testing
