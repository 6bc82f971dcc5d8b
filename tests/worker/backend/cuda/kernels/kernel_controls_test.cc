// Negative controls of kernel_bodies_test: bodies with one thing broken, and teams that a device would not run.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/worker/backend/cuda/kernels/host_kernels.h"
#include "tests/worker/backend/cuda/kernels/kernel_cases.h"
#include "worker/backend/cuda/kernels/elements.h"

namespace stemma::testing {
namespace {

constexpr uint32_t kControlSeed = 20261125;
constexpr uint32_t kControlCases = 8;
const TeamShape kShape{32, 3, LaneOrder::kDescending};

// The worst of some cases; more than 1 fails kernel_bodies_test.
double Worst(const Case& entry, const Tables& broken) {
  double worst = 0;
  for (uint32_t seed = kControlSeed; seed < kControlSeed + kControlCases; ++seed) {
    const Outputs actual = entry(broken, at::kBFloat16, Drawn(seed, {}));
    worst = std::max(worst, WorstError(actual, entry(ComposedTables(), at::kBFloat16, Drawn(seed, {}))));
  }
  return worst;
}

Tables WithFault(Fault fault) {
  const HostRun run{kShape, fault};
  return {HostKernels(run), HostAttentionKernels(run)};
}

TEST(KernelControlsTest, WithoutAFaultTheyPass) {
  for (const Case& entry : {Case(RmsNormCase), Case(QkvBackwardCase), Case(HeadBackwardCase), Case(LossCase)}) {
    EXPECT_LE(Worst(entry, WithFault(Fault::kNone)), 1);
  }
}

// dx without its mean over the row: the forward is given the right sums.
TEST(KernelControlsTest, ADroppedTermOfANormsGradientIsSeen) {
  Tables tables = WithFault(Fault::kNoSums);
  tables.kernels.rms_norm_forward = ComposedTables().kernels.rms_norm_forward;
  EXPECT_GT(Worst(RmsNormCase, tables), 10);
  EXPECT_GT(Worst(QkvBackwardCase, tables), 10);
}

TEST(KernelControlsTest, SumsOfOneLaneAreSeen) {
  for (const Case& entry : {Case(RmsNormCase), Case(QkvForwardCase), Case(HeadForwardCase), Case(LossCase),
                            Case(VectorNormCase), Case(WordSumCase)}) {
    EXPECT_GT(Worst(entry, WithFault(Fault::kOwnSums)), 10);
  }
}

TEST(KernelControlsTest, MaximaOfOneLaneAreSeen) {
  EXPECT_GT(Worst(HeadForwardCase, WithFault(Fault::kOwnMax)), 10);
  EXPECT_GT(Worst(NonfiniteCase, WithFault(Fault::kOwnMax)), 10);
}

TEST(KernelControlsTest, AMissingBlockOfRowsIsSeen) {
  for (const Case& entry :
       {Case(RmsNormCase), Case(QkvBackwardCase), Case(LossCase), Case(VectorNormCase), Case(WordSumCase)}) {
    EXPECT_GT(Worst(entry, WithFault(Fault::kLastTeamMissing)), 10);
  }
}

// The gradient of bf16 lies over logits that other lanes have yet to read.
TEST(KernelControlsTest, OverwritingLogitsWithoutABarrierIsSeen) {
  EXPECT_GT(Worst(HeadBackwardCase, WithFault(Fault::kNoBarriers)), 10);
}

// What lambdas without a capture call.
Kernels whole_kernels = {};

TEST(KernelControlsTest, ARotationTheWrongWayIsSeen) {
  whole_kernels = HostKernels({kShape});
  Tables tables = WithFault(Fault::kNone);
  tables.kernels.qkv_backward = [](const QkvBackwardOperands& args) {
    const at::Tensor sin = -args.sin_PE;
    whole_kernels.qkv_backward({args.dq_HTE, args.dk_TKE, args.dv_TKE, args.positions_T, args.cos_PE, sin,
                                args.q_weight_E, args.k_weight_E, args.qkv_TJ, args.rstd_TJ, args.dq_weight_E,
                                args.dk_weight_E, args.dqkv_TJ});
  };
  EXPECT_GT(Worst(QkvBackwardCase, tables), 10);
}

TEST(KernelControlsTest, GateAndUpInTheWrongOrderAreSeen) {
  whole_kernels = HostKernels({kShape});
  Tables tables = WithFault(Fault::kNone);
  tables.kernels.swiglu_forward = [](const SwigluForwardOperands& args) {
    const at::Tensor swapped = args.gate_up_TJ.roll(args.y_TF.size(1), 1);
    whole_kernels.swiglu_forward({swapped, args.y_TF});
  };
  EXPECT_GT(Worst(SwigluCase, tables), 10);
  tables.kernels = whole_kernels;
  tables.kernels.swiglu_backward = [](const SwigluBackwardOperands& args) {
    const at::Tensor swapped = args.gate_up_TJ.roll(args.dy_TF.size(1), 1);
    whole_kernels.swiglu_backward({args.dy_TF, swapped, args.dgate_up_TJ});
  };
  EXPECT_GT(Worst(SwigluCase, tables), 10);
}

TEST(KernelControlsTest, PartsOfAMergeInTheWrongOrderAreSeen) {
  static const worker::cuda::AttentionKernels whole = HostAttentionKernels({kShape});
  Tables tables = WithFault(Fault::kNone);
  tables.attention.merge = [](const worker::cuda::MergeOperands& args) {
    whole.merge({args.a_THE, args.b_THE, args.lse_b_HT, args.lse_a_HT, args.o_THE, args.lse_HT});
  };
  EXPECT_GT(Worst(MergeCase, tables), 10);
}

TEST(KernelControlsTest, ARowThatIsLeftOutIsSeen) {
  whole_kernels = HostKernels({kShape});
  static const worker::cuda::AttentionKernels whole_attention = HostAttentionKernels({kShape});
  Tables tables = WithFault(Fault::kNone);
  tables.kernels.embedding_backward = [](const EmbeddingBackwardOperands& args) {
    const int64_t rows = args.tokens_T.size(0) - 1;
    const at::Tensor tokens = args.tokens_T.narrow(0, 0, rows), dx = args.dx_TD.narrow(0, 0, rows);
    whole_kernels.embedding_backward({tokens, dx, args.dweight_VD});
  };
  tables.attention.add_parts = [](const worker::cuda::AddPartsOperands& args) {
    const int64_t parts = args.parts_NCKE.size(0) - 1;
    if (parts > 0) whole_attention.add_parts({args.parts_NCKE.narrow(0, 0, parts), args.sum_CKE});
  };
  EXPECT_GT(Worst(EmbeddingCase, tables), 10);
  EXPECT_GT(Worst(AddPartsCase, tables), 10);
}

using KernelControlsDeathTest = ::testing::Test;

TEST(KernelControlsDeathTest, ABarrierThatSomeLanesNeverComeToDies) {
  const auto diverge = [] {
    RunTeams({4, 1}, [](HostTeam& team) {
      if (team.rank() < 2) team.Sync();
    });
  };
  EXPECT_DEATH(diverge(), "barrier");
}

TEST(KernelControlsDeathTest, APackAtAnAddressThatIsNotAlignedDies) {
  alignas(16) float values[8] = {};
  EXPECT_DEATH(worker::cuda::Load<4>(values + 1), "aligned");
}

}  // namespace
}  // namespace stemma::testing
