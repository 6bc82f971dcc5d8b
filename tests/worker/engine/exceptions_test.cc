// No exception crosses the engine: whatever is thrown below becomes the vote of the step, and the engine goes on.
#include "worker/engine/exceptions.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/engine/small_engine.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace stemma::testing {
namespace {

// The product's attention, which throws what it is told to.
class ThrowingAttention : public CpuAttention {
 public:
  explicit ThrowingAttention(std::function<void()>& thrower) : thrower_(thrower) {}
  Output Forward(const Call& call) const override {
    thrower_();
    return CpuAttention::Forward(call);
  }

 private:
  std::function<void()>& thrower_;
};

struct Thrown {
  std::function<void()> thrower;
  internal::v1::NoVoteReason reason;
};

using ExceptionsTest = SmallEngineTest;

TEST_F(ExceptionsTest, EachKindIsTheStepsAnswerAndTheNextStepIsMade) {
  std::function<void()> thrower = [] {};
  const auto engine = MakeEngine(MakeCpuBackend(std::make_unique<ThrowingAttention>(thrower)));
  ASSERT_NE(engine, nullptr);
  const std::vector<Thrown> kinds = {
      {[] { TORCH_CHECK(false, "of LibTorch"); }, internal::v1::INTERNAL},
      {[] { throw std::bad_alloc(); }, internal::v1::OUT_OF_MEMORY},
      {[] {
         throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "of LibTorch");
       },
       internal::v1::OUT_OF_MEMORY},
      {[] { throw std::runtime_error("of a library"); }, internal::v1::INTERNAL},
      {[] { nlohmann::json("text")["key"] = 1; }, internal::v1::INTERNAL},
  };
  ASSERT_TRUE(engine->Load(Request({16})).ok());
  for (const Thrown& kind : kinds) {
    thrower = kind.thrower;
    const auto vote = engine->Prepare(0);
    ASSERT_TRUE(vote.ok()) << vote.status();
    EXPECT_FALSE(vote->yes());
    EXPECT_EQ(vote->no_reason(), kind.reason);
    EXPECT_FALSE(vote->message().empty());
  }
  thrower = [] {};
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  EXPECT_TRUE(engine->Apply(0, *vote).ok());
}

// The offload arena is as large for a group of one token: a client that made its groups smaller would try in vain.
TEST_F(ExceptionsTest, HostMemoryThatTheConfigurationAsksForIsNoGroupThatIsTooLarge) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends the process instead";
#endif
  InProcessOptions options;
  options.run.set_host_memory_bytes(uint64_t{1} << 60);
  options.run.set_memory_budget_bytes(uint64_t{1} << 30);
  options.run.set_optimizer_residency(v1::DEVICE);
  options.edit_step = [](v1::StepPlan& step) {
    for (v1::Cluster& cluster : *step.mutable_clusters()) cluster.set_offload_prefix(true);
  };
  const auto engine = MakeEngine(MakeCpuBackend(), options);
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16})).ok());
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok()) << vote.status();
  EXPECT_EQ(vote->no_reason(), internal::v1::INTERNAL);
  EXPECT_EQ(vote->message(), "the host has no 1152921504606846976 bytes for the offload arena");
}

// After an error of the device nothing that this process computes on it can be trusted, whoever asks for it: the
// session ends, and the server makes the step again with a new process.
TEST_F(ExceptionsTest, ADeviceThatFailsEndsTheSessionAndItsMissingMemoryDoesNot) {
  std::function<void()> thrower = [] {};
  const auto engine = MakeEngine(MakeCpuBackend(std::make_unique<ThrowingAttention>(thrower)));
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16})).ok());
  constexpr int32_t kNoMemory = 2, kIllegalAddress = 700;  // CUDA's
  const auto throws = [&](int32_t code) {
    thrower = [code] { throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, code, "CUDA's words"); };
  };
  throws(kNoMemory);
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok()) << vote.status();
  EXPECT_EQ(vote->no_reason(), internal::v1::OUT_OF_MEMORY);
  throws(kIllegalAddress);
  EXPECT_THAT(engine->Prepare(0).status(),
              StatusIs(absl::StatusCode::kUnavailable, "this rank's own device failed (CUDA's words)"));
}

// A call that the device refuses, as a launch that it cannot make, leaves it as it was: the request's answer. Where the
// device has failed besides, that counts.
TEST_F(ExceptionsTest, ACallThatTheDeviceRefusesIsTheRequestsAnswerWhereTheDeviceWorks) {
  const auto refused = [](int32_t code) {
    return worker::CatchExceptions([code]() -> absl::Status {
      throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, code, "CUDA's words");
    });
  };
  constexpr int32_t kInvalidConfiguration = 9, kOperatingSystem = 304;  // CUDA's
  for (const int32_t code : {kInvalidConfiguration, kOperatingSystem}) {
    EXPECT_THAT(refused(code), StatusIs(absl::StatusCode::kInternal, "CUDA's words"));
    const FailedFakeDevice failed("an uncorrectable ECC error");
    EXPECT_THAT(refused(code),
                StatusIs(absl::StatusCode::kUnavailable,
                         "this rank's own device failed (an uncorrectable ECC error; seen by: CUDA's words)"));
  }
}

// A library that calls the device next sees its error first, and names its own call.
TEST_F(ExceptionsTest, AnErrorOfALibraryIsTheDevicesWhereItHasFailed) {
  const auto library_fails = [] {
    return worker::CatchExceptions([] {
      TORCH_CHECK(false, "cublasGemmEx: execution failed");
      return absl::OkStatus();
    });
  };
  {
    const FailedFakeDevice failed("an uncorrectable ECC error");
    EXPECT_THAT(library_fails(), StatusIs(absl::StatusCode::kUnavailable,
                                          "this rank's own device failed (an uncorrectable ECC error; seen by: "
                                          "cublasGemmEx: execution failed)"));
  }
  EXPECT_THAT(library_fails(), StatusIs(absl::StatusCode::kInternal, "cublasGemmEx: execution failed"));
}

// The gradients' norm is the first that the host waits for after the exchange: an error of all that went before it may
// come there.
TEST_F(ExceptionsTest, ADeviceThatFailsInTheGradientsNormEndsTheSessionToo) {
  static bool fails;
  fails = false;
  Backend backend = MakeCpuBackend();
  static void (*vector_norm)(const VectorNormOperands&);
  vector_norm = std::exchange(backend.kernels.vector_norm, [](const VectorNormOperands& operands) {
    if (fails) throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, /*code=*/700, "CUDA's words");
    vector_norm(operands);
  });
  const auto engine = MakeEngine(std::move(backend));
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->Load(Request({16})).ok());
  const auto vote = engine->Prepare(0);
  ASSERT_TRUE(vote.ok() && vote->yes()) << vote.status();
  fails = true;
  EXPECT_THAT(engine->Prepare(0).status(),
              StatusIs(absl::StatusCode::kUnavailable, "this rank's own device failed (CUDA's words)"));
}

// Tokens index the embedding and the logits: one that the server let pass is the step's answer, not a read beyond them.
TEST_F(ExceptionsTest, ATokenOutsideTheVocabularyIsTheStepsAnswer) {
  const auto engine = MakeEngine(MakeCpuBackend());
  ASSERT_NE(engine, nullptr);
  for (const int64_t bad : {int64_t{-1}, vocab(), int64_t{1} << 30}) {
    const auto token = static_cast<int32_t>(bad);
    const std::string bytes(reinterpret_cast<const char*>(&token), sizeof(token));
    TrainingRequest in_prefix = Request({16}), in_targets = Request({16});
    in_prefix.groups[0].mutable_prompt_tokens()->replace(0, bytes.size(), bytes);
    // The last response token is a target only: no embedding reads it.
    std::string& response = *in_targets.groups[0].mutable_rollouts(0)->mutable_response_tokens();
    response.replace(response.size() - bytes.size(), bytes.size(), bytes);
    for (TrainingRequest* request : {&in_prefix, &in_targets}) {
      ASSERT_TRUE(engine->Load(std::move(*request)).ok());
      const auto vote = engine->Prepare(0);
      ASSERT_TRUE(vote.ok()) << vote.status();
      EXPECT_FALSE(vote->yes());
      EXPECT_NE(vote->message().find("holds token " + std::to_string(token)), std::string::npos) << vote->message();
    }
  }
}

class PrefixRolloutsTest : public SmallEngineTest {
  ModelConfig model() const override { return SyntheticModel({.layers = 2, .experts = Experts{4, 2, true}}); }
};

// Without them the rows of a prefix would count once, and nobody would hear of it.
TEST_F(PrefixRolloutsTest, APlanOfAModelWithExpertsSaysThemForEachPrefix) {
  bool says = true;
  InProcessOptions options;
  options.edit_step = [&](v1::StepPlan& step) {
    if (!says) step.mutable_clusters(0)->clear_prefix_rollouts();
  };
  const auto engine = MakeEngine(MakeCpuBackend(), options);
  ASSERT_NE(engine, nullptr);
  for (const bool with : {true, false}) {
    says = with;
    ASSERT_TRUE(engine->Load(Request({9})).ok());
    const auto vote = engine->Prepare(0);
    ASSERT_TRUE(vote.ok()) << vote.status();
    EXPECT_EQ(vote->yes(), with);
    EXPECT_EQ(vote->message(), with ? "" : "cluster 0: prefix_rollouts has 0 numbers, prefix_groups 1");
  }
}

// What the server never plans: a prompt of one token has no prefix, and neither has a group that is not there.
TEST_F(ExceptionsTest, APlanThatReusesNoPrefixIsTheStepsAnswer) {
  for (const uint32_t group : {0U, 7U}) {
    InProcessOptions options;
    options.edit_step = [group](v1::StepPlan& step) { step.mutable_clusters(0)->add_prefix_groups(group); };
    const auto engine = MakeEngine(MakeCpuBackend(), options);
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->Load(Request({1})).ok());
    const auto vote = engine->Prepare(0);
    ASSERT_TRUE(vote.ok()) << vote.status();
    const std::string expected =
        "reuses the prefix of group " + std::to_string(group) + ": not in the payload, or empty";
    EXPECT_NE(vote->message().find(expected), std::string::npos) << vote->message();
  }
}

}  // namespace
}  // namespace stemma::testing
