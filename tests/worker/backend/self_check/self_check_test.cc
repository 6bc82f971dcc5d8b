// The self-check on the CPU: what is right is admitted, what is wrong is refused by name, and what stands in for it
// gives the reference's bits.
#include "worker/backend/self_check/self_check.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "tests/testing/fake_device.h"
#include "tests/testing/namespaces.h"
#include "tests/testing/wrong_attention.h"
#include "tests/worker/backend/self_check/broken_backend.h"
#include "tests/worker/backend/self_check/rounding_attention.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cpu/split_attention.h"

namespace stemma::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Reference Composed() { return {.kernels = ComposedKernels(), .attention = MakeComposedAttention()}; }

// Small heads: the tests' time goes into attention.
CheckSetting Setting(at::ScalarType dtype) {
  return {.dtype = dtype, .shape = {.num_heads = 6, .num_kv_heads = 2, .head_size = 32}, .large_cases = false};
}

std::set<std::string> Refused(const std::vector<CheckResult>& results) {
  std::set<std::string> names;
  for (const CheckResult& result : results) {
    if (!result.admitted) names.insert(result.kernel);
  }
  return names;
}

const CheckResult& Of(const std::string& kernel, const std::vector<CheckResult>& results) {
  for (const CheckResult& result : results) {
    if (result.kernel == kernel) return result;
  }
  ADD_FAILURE() << "no result of " << kernel;
  return results.front();
}

std::vector<std::string> Off(const Backend& backend) {
  std::vector<std::string> names;
  for (const KernelOff& off : backend.kernels_off) names.push_back(off.kernel);
  return names;
}

class SelfCheckTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(SelfCheckTest, EveryKernelOfTheCpuIsAdmitted) {
  const std::vector<CheckResult> results = CheckBackend(MakeCpuBackend(), Composed(), Setting(GetParam()));
  for (const CheckResult& result : results) {
    EXPECT_TRUE(result.admitted) << result.kernel << ": " << result.reason;
    EXPECT_LE(result.worst_error, result.tolerance) << result.kernel;
    std::printf("%-20s %.2e of %.2e\n", result.kernel.c_str(), result.worst_error, result.tolerance);
  }
  EXPECT_THAT(Admit(MakeCpuBackend(), Composed(), results).kernels_off, IsEmpty());
}

TEST_P(SelfCheckTest, ThePlainOperationsThemselvesAreAdmittedInTheRunsDtype) {
  EXPECT_THAT(Refused(CheckBackend(MakeComposedBackend(), Composed(), Setting(GetParam()))), IsEmpty());
}

TEST_P(SelfCheckTest, QueriesByTokenAndGradientsOfLogitsInTheRunsDtypeAreAdmitted) {
  Backend backend = MakeComposedBackend();
  backend.queries_by_token = true;
  backend.dlogits_in_run_dtype = true;
  backend.logits_row_quantum = 8;
  for (const CheckResult& result : CheckBackend(backend, Composed(), Setting(GetParam()))) {
    EXPECT_TRUE(result.admitted) << result.kernel << ": " << result.reason;
  }
}

// A tensor of the host beside one of the device makes an operation throw. The device's memory stays open: to close it
// after each of a hundred thousand operations takes a minute.
TEST_P(SelfCheckTest, AllOperandsAreOnTheDevice) {
  const OpenFakeMemory open;
  for (const CheckResult& result : CheckBackend(MakeFakeDeviceBackend(), Composed(), Setting(GetParam()))) {
    EXPECT_TRUE(result.admitted) << result.kernel << ": " << result.reason;
  }
}

TEST_P(SelfCheckTest, EachFaultOfEveryKernelIsSeen) {
  for (const Fault fault : kFaults) {
    Backend backend = MakeCpuBackend();
    std::set<std::string> broken;
    for (const std::string& kernel : CheckedKernels()) {
      if (Break(kernel, fault, backend)) broken.insert(kernel);
    }
    EXPECT_GE(broken.size(), 13u);
    EXPECT_EQ(Refused(CheckBackend(backend, Composed(), Setting(GetParam()))), broken)
        << "fault " << static_cast<int>(fault);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SelfCheckTest, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& param) { return std::string(c10::toString(param.param)); });

// What lies between rows of logits, or of their gradients.
at::Tensor BetweenRows(const at::Tensor& x_TV) {
  return x_TV.as_strided({x_TV.size(0), x_TV.stride(0) - x_TV.size(1)}, x_TV.strides(),
                         x_TV.storage_offset() + x_TV.size(1));
}

// The composed kernels, each with the numbers between rows of logits added to what it writes, or with zeros there.
Backend TouchingBetweenRows() {
  Backend backend = MakeComposedBackend();
  backend.kernels.head_forward = [](const HeadForwardOperands& args) {
    ComposedKernels().head_forward(args);
    args.log_prob_T.add_(BetweenRows(args.logits_TV).sum());
  };
  backend.kernels.head_backward = [](const HeadBackwardOperands& args) {
    ComposedKernels().head_backward(args);
    BetweenRows(args.logits_TV).zero_();
  };
  backend.kernels.logits = [](const LogitsOperands& args) {
    ComposedKernels().logits(args);
    BetweenRows(args.logits_TV).zero_();
  };
  backend.kernels.logits_backward = [](const LogitsBackwardOperands& args) {
    ComposedKernels().logits_backward(args);
    args.dhidden_TD.add_(BetweenRows(args.dlogits_TV).sum());
  };
  backend.kernels.add_weight_gradient = [](const WeightGradientOperands& args) {
    ComposedKernels().add_weight_gradient(args);
    args.dweight_OI.add_(BetweenRows(args.dy_TO).sum());
  };
  return backend;
}

TEST_P(SelfCheckTest, AKernelThatTouchesWhatLiesBetweenRowsOfLogitsIsRefused) {
  Backend backend = TouchingBetweenRows();
  EXPECT_THAT(Refused(CheckBackend(backend, Composed(), Setting(GetParam()))), IsEmpty()) << "nothing lies there";
  backend.logits_row_quantum = 8;
  EXPECT_THAT(
      Refused(CheckBackend(backend, Composed(), Setting(GetParam()))),
      UnorderedElementsAre("head_forward", "head_backward", "logits", "logits_backward", "add_weight_gradient"));
}

TEST(SelfCheckAdmitTest, EachBrokenKernelIsRefusedAloneAndTheOthersStay) {
  const Kernels cpu = MakeCpuBackend().kernels;
  for (const std::string& kernel : CheckedKernels()) {
    Backend backend = MakeCpuBackend();
    ASSERT_TRUE(Break(kernel, Fault::kUnwritten, backend));
    const std::vector<CheckResult> results = CheckBackend(backend, Composed(), Setting(at::kBFloat16));
    EXPECT_THAT(Refused(results), ElementsAre(kernel));
    const Backend admitted = Admit(backend, Composed(), results);
    EXPECT_EQ(admitted.kernels.swiglu_forward,
              kernel == "swiglu_forward" ? ComposedKernels().swiglu_forward : cpu.swiglu_forward);
    EXPECT_EQ(admitted.kernels.loss, kernel == "loss" ? ComposedKernels().loss : cpu.loss);
    EXPECT_EQ(admitted.attention == backend.attention, kernel != "attention");
  }
}

// A faster attention that doubles its output where `wrong`.
class FasterAttention final : public AttentionOp {
 public:
  explicit FasterAttention(bool wrong) : wrong_(wrong) {}
  AttentionSaved Forward(const AttentionBatch& batch, const at::Tensor& q_HTE, const at::Tensor& k_TKE,
                         const at::Tensor& v_TKE) const override {
    const AttentionSaved saved = right_->Forward(batch, q_HTE, k_TKE, v_TKE);
    if (wrong_) saved.o_TD.mul_(2);
    return saved;
  }
  AttentionGradients Backward(const AttentionBatch& batch, const at::Tensor& do_TD,
                              const AttentionSaved& saved) const override {
    return right_->Backward(batch, do_TD, saved);
  }

 private:
  const bool wrong_;
  const std::shared_ptr<const AttentionOp> right_ = MakeCpuBackend().attention;
};

TEST(SelfCheckAdmitTest, TheFirstFasterAttentionThatIsRightIsTaken) {
  const auto right = std::make_shared<FasterAttention>(false), later = std::make_shared<FasterAttention>(false);
  Backend backend = MakeCpuBackend();
  backend.faster_attention = {{"wrong", std::make_shared<FasterAttention>(true)}, {"right", right}, {"later", later}};
  const Backend admitted = Admit(backend, Composed(), CheckBackend(backend, Composed(), Setting(at::kBFloat16)));
  EXPECT_EQ(admitted.attention, right);
  EXPECT_THAT(Off(admitted), ElementsAre("wrong"));
  EXPECT_NE(admitted.kernels_off[0].reason, "");
  EXPECT_TRUE(admitted.faster_attention.empty());
}

TEST(SelfCheckAdmitTest, WhatARunHasMayLeaveCallsToOthersThatTheCheckTried) {
  const auto tried = std::make_shared<FasterAttention>(false), in_use = std::make_shared<FasterAttention>(false);
  Backend backend = MakeCpuBackend();
  backend.faster_attention = {{"right", tried, in_use}};
  const Reference reference = Composed();
  EXPECT_EQ(Admit(backend, reference, CheckBackend(backend, reference, Setting(at::kBFloat16))).attention, in_use);
}

// What a run has leaves calls to the own attention: where that is wrong, the one that was tried makes all of them.
TEST(SelfCheckAdmitTest, WhereTheOwnAttentionIsRefusedNoCallIsLeftToIt) {
  const auto tried = std::make_shared<FasterAttention>(false), in_use = std::make_shared<FasterAttention>(false);
  Backend backend = MakeCpuBackend();
  backend.attention = std::make_shared<FasterAttention>(true);
  backend.faster_attention = {{"right", tried, in_use}};
  const Reference reference = Composed();
  const Backend admitted = Admit(backend, reference, CheckBackend(backend, reference, Setting(at::kBFloat16)));
  EXPECT_EQ(admitted.attention, tried);
  EXPECT_THAT(Off(admitted), ElementsAre("attention"));
}

TEST(SelfCheckAdmitTest, WithoutAFasterAttentionThatIsRightTheOwnOneStays) {
  Backend backend = MakeCpuBackend();
  backend.faster_attention = {{"wrong", std::make_shared<FasterAttention>(true)}};
  const Backend admitted = Admit(backend, Composed(), CheckBackend(backend, Composed(), Setting(at::kFloat)));
  EXPECT_EQ(admitted.attention, backend.attention);
  EXPECT_THAT(Off(admitted), ElementsAre("wrong"));
}

TEST(SelfCheckAdmitTest, KernelsThatShareWhatOneSavesFallTogether) {
  const auto off_with = [](const std::string& kernel) {
    std::vector<CheckResult> results;
    for (const std::string& name : CheckedKernels()) results.push_back({.kernel = name});
    for (CheckResult& result : results) {
      if (result.kernel != kernel) continue;
      result.admitted = false;
      result.reason = "why";
    }
    return Admit(MakeCpuBackend(), Composed(), results);
  };
  const Backend backend = off_with("rms_norm_backward");
  ASSERT_THAT(Off(backend), ElementsAre("rms_norm_forward", "rms_norm_backward"));
  EXPECT_EQ(backend.kernels_off[0].reason, "belongs together with rms_norm_backward");
  EXPECT_EQ(backend.kernels_off[1].reason, "why");
  EXPECT_EQ(backend.kernels.rms_norm_forward, ComposedKernels().rms_norm_forward);
  EXPECT_EQ(backend.kernels.rms_norm_backward, ComposedKernels().rms_norm_backward);
  EXPECT_THAT(Off(off_with("qkv_forward")), ElementsAre("qkv_forward", "qkv_backward"));
  EXPECT_THAT(Off(off_with("head_forward")), ElementsAre("head_forward", "head_backward"));
  EXPECT_THAT(Off(off_with("logits")), ElementsAre("logits"));
  EXPECT_THAT(Off(off_with("attention")), ElementsAre("attention"));
}

TEST(SelfCheckReasonTest, ReasonsSayWhichOperandsAndWhatWasSeen) {
  const auto reason = [](const std::string& kernel, Fault fault) {
    Backend backend = MakeCpuBackend();
    EXPECT_TRUE(Break(kernel, fault, backend));
    return Of(kernel, CheckBackend(backend, Composed(), Setting(at::kFloat))).reason;
  };
  EXPECT_EQ(reason("logits", Fault::kThrows), "[1, 64] to 128: fails: no kernel image is available");
  EXPECT_THAT(reason("swiglu_forward", Fault::kUnwritten), HasSubstr("y_TF is not finite at element"));
  EXPECT_THAT(reason("swiglu_backward", Fault::kWritesPastEnd), HasSubstr("writes outside of an operand of ["));
  EXPECT_THAT(reason("attention", Fault::kScaled), HasSubstr("dk_TKE is off by 0.0"));
}

TEST(SelfCheckReasonTest, ATwofoldEpsilonIsSeen) {
  Backend backend = MakeCpuBackend();
  backend.kernels.rms_norm_forward = [](const RmsNormForwardOperands& args) {
    ComposedKernels().rms_norm_forward({args.x_TD, args.weight_D, args.y_TD, args.rstd_T, args.eps * 2});
  };
  backend.kernels.qkv_forward = [](const QkvForwardOperands& args) {
    QkvForwardOperands twofold = args;
    twofold.eps *= 2;
    ComposedKernels().qkv_forward(twofold);
  };
  EXPECT_THAT(Refused(CheckBackend(backend, Composed(), Setting(at::kBFloat16))),
              ElementsAre("qkv_forward", "rms_norm_forward"));
}

TEST(SelfCheckReasonTest, GradientsOfAMergeByPartsAreSeen) {
  for (const WrongBackward wrong : {WrongBackward::kOwnOutputAndLse, WrongBackward::kOwnOutput, WrongBackward::kOwnLse,
                                    WrongBackward::kNoAncestor}) {
    const SplitAttention attention(std::make_unique<WrongAttention>(wrong));
    const CheckResult result =
        CheckAttention("attention of parts", attention, MakeCpuBackend(), Composed(), Setting(at::kBFloat16));
    EXPECT_FALSE(result.admitted) << static_cast<int>(wrong);
    EXPECT_EQ(result.kernel, "attention of parts");
  }
}

TEST(SelfCheckReasonTest, AttentionThatRoundsAsFlashKernelsDoIsAdmitted) {
  for (const CheckShape& shape : {CheckShape{6, 2, 32}, CheckShape{8, 8, 64}, CheckShape{16, 2, 128}}) {
    const CheckResult result = CheckAttention("attention", *MakeRoundingAttention(), MakeCpuBackend(), Composed(),
                                              {.dtype = at::kBFloat16, .shape = shape, .large_cases = false});
    EXPECT_TRUE(result.admitted) << result.reason;
    // Half of what is taken: a real kernel sums in another order.
    EXPECT_LE(result.worst_error, result.tolerance / 2) << shape.head_size;
  }
}

TEST(SelfCheckReasonTest, AKernelThatThrewInAnyCaseSaysSo) {
  Backend backend = MakeCpuBackend();
  backend.kernels.logits = [](const LogitsOperands& args) {
    TORCH_CHECK(args.hidden_TD.size(0) != 1, "CUBLAS_STATUS_ALLOC_FAILED");
    ComposedKernels().logits(args);
    args.logits_TV.mul_(2);  // is off in the other cases
  };
  ASSERT_TRUE(Break("loss", Fault::kScaled, backend));
  const std::vector<CheckResult> results = CheckBackend(backend, Composed(), Setting(at::kFloat));
  for (const CheckResult& result : results) {
    EXPECT_EQ(result.threw, result.kernel == "logits") << result.kernel;
    EXPECT_EQ(result.admitted, result.kernel != "logits" && result.kernel != "loss") << result.kernel;
  }
}

TEST(SelfCheckReasonTest, LackOfMemoryIsNoRefusal) {
  Backend backend = MakeCpuBackend();
  backend.kernels.logits = [](const LogitsOperands&) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "the device is full");
  };
  EXPECT_THROW(CheckBackend(backend, Composed(), Setting(at::kFloat)), c10::OutOfMemoryError);
}

TEST(SelfCheckReasonTest, AReferenceThatFailsIsNoRefusal) {
  Reference reference = Composed();
  reference.kernels.loss = [](const LossOperands&) { TORCH_CHECK(false, "an illegal memory access"); };
  EXPECT_THROW(CheckBackend(MakeCpuBackend(), reference, Setting(at::kFloat)), c10::Error);
}

}  // namespace
}  // namespace stemma::testing
