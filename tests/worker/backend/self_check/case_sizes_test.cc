// The self-check's cases are as large as the ways that kernels' launches take: packs of 16 bytes over more than one
// tile, and more items than a device's grid has blocks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/namespaces.h"
#include "worker/backend/composed/composed_backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cuda/kernels/head.h"
#include "worker/backend/cuda/kernels/launch_sizes.h"
#include "worker/backend/cuda/kernels/norm.h"
#include "worker/backend/cuda/kernels/team.h"
#include "worker/backend/self_check/cases.h"

namespace stemma::testing {
namespace {

using namespace worker::cuda;  // NOLINT(google-build-using-namespace): the sizes of launches
using worker::self_check::Case;
using worker::self_check::Operands;
using worker::self_check::Side;
using Cases = std::vector<Case> (*)(const CheckShape&);

// More than any GPU has; an H200 has 132.
constexpr int64_t kProcessors = 192;
constexpr int64_t kPack = 8;  // of bf16

// What a kernel is called with: rows of so many elements. heads: of a row of qkv.
struct Asked {
  int64_t rows = 0, width = 0, heads = 0;
  bool has_packs = false;
};
std::vector<Asked> asked;

void Note(const at::Tensor& x, int64_t heads = 0) {
  const bool is_row = x.dim() > 1;
  const int64_t width = x.size(is_row ? 1 : 0);
  const bool aligned = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  asked.push_back({is_row ? x.size(0) : 1, width, heads, aligned && width % kPack == 0});
}

// A table whose entries note what they are called with, and do nothing.
Kernels NotingKernels() {
  Kernels kernels{};
  kernels.rms_norm_forward = [](const RmsNormForwardOperands& args) { Note(args.x_TD); };
  kernels.rms_norm_backward = [](const RmsNormBackwardOperands& args) { Note(args.x_TD); };
  kernels.swiglu_forward = [](const SwigluForwardOperands& args) { Note(args.y_TF); };
  kernels.swiglu_backward = [](const SwigluBackwardOperands& args) { Note(args.dy_TF); };
  kernels.qkv_forward = [](const QkvForwardOperands& args) {
    Note(args.qkv_TJ, (args.q_HTE.defined() ? args.q_HTE.size(0) : 0) + 2 * args.k_TKE.size(1));
  };
  kernels.qkv_backward = [](const QkvBackwardOperands& args) {
    Note(args.dqkv_TJ, (args.dq_HTE.defined() ? args.dq_HTE.size(0) : 0) + 2 * args.dk_TKE.size(1));
  };
  kernels.embedding_backward = [](const EmbeddingBackwardOperands& args) { Note(args.dx_TD); };
  kernels.head_forward = [](const HeadForwardOperands& args) { Note(args.logits_TV); };
  kernels.head_backward = [](const HeadBackwardOperands& args) { Note(args.logits_TV); };
  kernels.vector_norm = [](const VectorNormOperands& args) { Note(args.values); };
  kernels.first_nonfinite = [](const FirstNonfiniteOperands& args) { Note(args.values); };
  return kernels;
}

std::vector<Asked> AskedBy(Cases cases) {
  asked.clear();
  const Kernels kernels = NotingKernels();
  const auto attention = MakeComposedAttention();
  const Side side{.kernels = kernels, .attention = *attention};
  for (const Case& one : cases({.num_heads = 8, .num_kv_heads = 2, .head_size = 64})) {
    Operands operands({.device = at::kCPU, .run_dtype = at::kBFloat16});
    one.run(side, operands);
  }
  return asked;
}

// Whether some case has more such items than blocks.
template <typename Items>
bool HasMoreThan(int64_t blocks_of_processor, const std::vector<Asked>& all, const Items& items) {
  return std::any_of(all.begin(), all.end(),
                     [&](const Asked& a) { return items(a) > blocks_of_processor * kProcessors; });
}

// Whether some case's rows are wider than so many packs.
bool HasWiderThan(int64_t packs, const std::vector<Asked>& all) {
  return std::any_of(all.begin(), all.end(), [&](const Asked& a) { return a.has_packs && a.width > packs * kPack; });
}

int64_t RowsOf(const Asked& a) { return a.rows; }

TEST(CaseSizesTest, RowsAreWiderThanABlockKeepsAndMoreThanTheGrid) {
  for (const Cases cases : {worker::self_check::RmsNormForwardCases, worker::self_check::RmsNormBackwardCases}) {
    const std::vector<Asked> all = AskedBy(cases);
    EXPECT_TRUE(HasWiderThan(int64_t{kHeldPacks} * kNormThreads, all));
    EXPECT_TRUE(HasMoreThan(kNormBlocks, all, RowsOf));
    EXPECT_TRUE(HasMoreThan(kNormBackwardBlocks, all, [](const Asked& a) { return a.rows / kNormMinRowsPerTeam; }));
  }
}

TEST(CaseSizesTest, RowsHaveSeveralTilesAndAreMoreThanTheGrid) {
  for (const Cases cases : {worker::self_check::SwigluForwardCases, worker::self_check::SwigluBackwardCases}) {
    const std::vector<Asked> all = AskedBy(cases);
    EXPECT_TRUE(HasWiderThan(int64_t{kPacksPerTile} * kSwigluThreads, all));
    EXPECT_TRUE(HasMoreThan(kSwigluBlocks, all, RowsOf));
  }
  EXPECT_TRUE(
      HasWiderThan(int64_t{kPacksPerTile} * kEmbeddingThreads, AskedBy(worker::self_check::EmbeddingBackwardCases)));
}

TEST(CaseSizesTest, RowsOfHeadsAreMoreThanTheGridHasTiles) {
  for (const Cases cases : {worker::self_check::QkvForwardCases, worker::self_check::QkvBackwardCases}) {
    const std::vector<Asked> all = AskedBy(cases);
    EXPECT_TRUE(HasMoreThan(kQkvBlocks * kQkvThreads / kTileLanes, all,
                            [](const Asked& a) { return a.has_packs ? a.rows * a.heads : 0; }));
    EXPECT_TRUE(HasMoreThan(kQkvNormBackwardBlocks, all, [](const Asked& a) { return a.rows / kQkvMinRowsPerBlock; }));
  }
}

TEST(CaseSizesTest, RowsOfLogitsHaveSeveralTilesAndAreMoreThanTheGrid) {
  for (const Cases cases : {worker::self_check::HeadForwardCases, worker::self_check::HeadBackwardCases}) {
    const std::vector<Asked> all = AskedBy(cases);
    EXPECT_TRUE(HasWiderThan(kHeadThreads * kHeadVector / kPack, all));
    EXPECT_TRUE(HasMoreThan(kHeadBlocks, all, RowsOf));
  }
}

TEST(CaseSizesTest, NumbersInPacksAreOfSeveralBlocks) {
  for (const Cases cases : {worker::self_check::VectorNormCases, worker::self_check::FirstNonfiniteCases}) {
    EXPECT_TRUE(HasWiderThan(8 * kElementsPerTeam / kPack, AskedBy(cases)));
  }
}

// A CPU's self-check leaves them out: here they show that they can be passed.
TEST(CaseSizesTest, LargeCasesOfKernelsAreRight) {
  const Backend cpu = MakeCpuBackend();
  const Kernels composed = ComposedKernels();
  const auto attention = MakeComposedAttention();
  int64_t large = 0;
  for (const Cases cases : {worker::self_check::RmsNormForwardCases, worker::self_check::RmsNormBackwardCases,
                            worker::self_check::SwigluForwardCases, worker::self_check::SwigluBackwardCases,
                            worker::self_check::QkvForwardCases, worker::self_check::QkvBackwardCases,
                            worker::self_check::EmbeddingBackwardCases, worker::self_check::HeadForwardCases,
                            worker::self_check::HeadBackwardCases, worker::self_check::VectorNormCases,
                            worker::self_check::FirstNonfiniteCases}) {
    for (const Case& one : cases({.num_heads = 8, .num_kv_heads = 2, .head_size = 64})) {
      if (!one.is_large) continue;
      ++large;
      Operands expected({.device = at::kCPU, .run_dtype = at::kFloat, .is_reference = true});
      Operands actual({.device = at::kCPU, .run_dtype = at::kFloat});
      one.run({.kernels = composed, .attention = *attention}, expected);
      one.run({.kernels = cpu.kernels, .attention = *attention}, actual);
      expected.Fetch();
      actual.Fetch();
      EXPECT_EQ(actual.CompareWith(expected, {.run = 2e-5, .acc = 2e-5, .rows = 1e-5}).reason, "") << one.name;
    }
  }
  EXPECT_EQ(large, 1 + 2 + 2 + 2 + 2 + 2 + 2 + 1 + 1 + 4 + 4);
}

}  // namespace
}  // namespace stemma::testing
