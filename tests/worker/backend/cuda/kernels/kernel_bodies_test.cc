// The bodies of the CUDA kernels, run on the host by teams of several sizes, against the composed kernels.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/backend/cuda/kernels/host_kernels.h"
#include "tests/worker/backend/cuda/kernels/kernel_cases.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cuda/kernels/head.h"
#include "worker/backend/cuda/kernels/launch_sizes.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::testing {
namespace {

constexpr uint32_t kSeed = 20261125;
constexpr uint32_t kCases = 8;

// One thread, a warp, blocks, sizes that no device has, and more teams than a team has threads.
const std::vector<TeamShape> kShapes = {{1, 1}, {32, 3, LaneOrder::kDescending}, {128, 2}, {256, 2},
                                        {8, 5}, {7, 4, LaneOrder::kDescending},  {33, 2},  {2, 5}};

Tables HostTables(const HostRun& run) { return {HostKernels(run), HostAttentionKernels(run)}; }

void ExpectTheComposed(const Case& entry) {
  bool vectors = false, elements = false;
  for (const TeamShape& shape : kShapes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool unaligned : {false, true}) {
        for (uint32_t seed = kSeed; seed < kSeed + kCases; ++seed) {
          const Placement placement{.unaligned = unaligned};
          const Outputs actual = entry(HostTables({shape}), dtype, Drawn(seed, placement));
          (LastBodyUsedVectors() ? vectors : elements) = true;
          EXPECT_FALSE(unaligned && LastBodyUsedVectors());
          EXPECT_LE(WorstError(actual, entry(ComposedTables(), dtype, Drawn(seed, placement))), 1)
              << c10::toString(dtype) << " seed " << seed << ", " << shape.count << " teams of " << shape.size;
        }
      }
    }
  }
  EXPECT_TRUE(vectors && elements) << "both ways through memory must have been tried";
}

TEST(KernelBodiesTest, RmsNormIsTheComposed) { ExpectTheComposed(RmsNormCase); }
TEST(KernelBodiesTest, SwigluIsTheComposed) { ExpectTheComposed(SwigluCase); }
TEST(KernelBodiesTest, HeadsOfAFusedProductAreTheComposed) { ExpectTheComposed(QkvForwardCase); }
TEST(KernelBodiesTest, GradientsOfAFusedProductAreTheComposed) { ExpectTheComposed(QkvBackwardCase); }
TEST(KernelBodiesTest, EmbeddingGradientsAreTheComposed) { ExpectTheComposed(EmbeddingCase); }
TEST(KernelBodiesTest, TheHeadsStatisticsAreTheComposed) { ExpectTheComposed(HeadForwardCase); }
TEST(KernelBodiesTest, TheHeadsGradientsAreTheComposed) { ExpectTheComposed(HeadBackwardCase); }
TEST(KernelBodiesTest, TheFirstNonfiniteNumberIsTheComposed) { ExpectTheComposed(NonfiniteCase); }
TEST(KernelBodiesTest, MergedAttentionIsTheComposed) { ExpectTheComposed(MergeCase); }
TEST(KernelBodiesTest, AddedPartsAreTheComposed) { ExpectTheComposed(AddPartsCase); }

void ExpectTheComposedFrom(const Placement& placement) {
  for (const Case& entry : {Case(RmsNormCase), Case(SwigluCase), Case(QkvForwardCase), Case(QkvBackwardCase),
                            Case(EmbeddingCase), Case(HeadForwardCase), Case(HeadBackwardCase), Case(NonfiniteCase),
                            Case(VectorNormCase), Case(WordSumCase), Case(MergeCase), Case(AddPartsCase)}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (uint32_t seed = kSeed; seed < kSeed + kCases; ++seed) {
        const Outputs actual = entry(HostTables({{8, 2}}), dtype, Drawn(seed, placement));
        EXPECT_LE(WorstError(actual, entry(ComposedTables(), dtype, Drawn(seed, placement))), 1)
            << c10::toString(dtype) << " seed " << seed << ", tensor " << placement.unaligned_one;
      }
    }
  }
}

// A body dies where it reads a pack at an address that has none, as a device does.
TEST(KernelBodiesTest, OneUnalignedTensorIsEnoughForNoPacks) {
  constexpr int kTensors = 20;  // of a case, at most
  for (int n = 0; n < kTensors; ++n) ExpectTheComposedFrom({.unaligned_one = n});
}
// Rows are apart by no whole packs, or heads are.
TEST(KernelBodiesTest, RowsOfHeadsThatBeginAtNoPackAreReadInNone) {
  for (const bool swapped : {false, true}) ExpectTheComposedFrom({.rows_apart = true, .swapped = swapped});
}

// Rows of any vocabulary are read in packs where they begin at multiples of a pack; what has none is not.
TEST(KernelBodiesTest, RowsOfLogitsAreReadInPacksWhereTheyBeginAtOne) {
  alignas(32) float logits[16] = {};
  const auto in_packs = [&](int64_t vocab, int64_t row_stride) {
    worker::cuda::HeadForwardArgs args{};
    args.logits_TV = logits;
    args.vocab = vocab;
    args.row_stride = row_stride;
    return HeadUsesVectors(args);
  };
  EXPECT_TRUE(in_packs(97, 104));
  EXPECT_TRUE(in_packs(96, 96));
  EXPECT_FALSE(in_packs(97, 97));
  EXPECT_FALSE(in_packs(5, 8));
}

// fp64 throughout, so that only the order of some hundred additions differs: 1e-12 is 5e-8 of what Allowed gives.
TEST(KernelBodiesTest, TheLossIsTheComposed) {
  for (const TeamShape& shape : kShapes) {
    for (uint32_t seed = kSeed; seed < kSeed + 60; ++seed) {
      const Outputs actual = LossCase(HostTables({shape}), at::kFloat, Drawn(seed, {}));
      EXPECT_LE(WorstError(actual, LossCase(ComposedTables(), at::kFloat, Drawn(seed, {}))), 5e-8) << "seed " << seed;
    }
  }
}

TEST(KernelBodiesTest, TheNormOfAVectorIsTheComposed) {
  for (const TeamShape& shape : kShapes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (uint32_t seed = kSeed; seed < kSeed + kCases; ++seed) {
        const Outputs actual = VectorNormCase(HostTables({shape}), dtype, Drawn(seed, {}));
        EXPECT_LE(WorstError(actual, VectorNormCase(ComposedTables(), dtype, Drawn(seed, {}))), 5e-8)
            << "seed " << seed;
      }
    }
  }
}

// Whole numbers: no bit may differ.
TEST(KernelBodiesTest, TheSumOfWordsIsTheComposed) {
  for (const TeamShape& shape : kShapes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (uint32_t seed = kSeed; seed < kSeed + kCases; ++seed) {
        const Outputs actual = WordSumCase(HostTables({shape}), dtype, Drawn(seed, {}));
        EXPECT_TRUE(at::equal(actual[0], WordSumCase(ComposedTables(), dtype, Drawn(seed, {}))[0])) << "seed " << seed;
      }
    }
  }
}

// One row after the other, on both sides.
TEST(KernelBodiesTest, EmbeddingGradientsAreTheCpusBits) {
  const Tables cpu{MakeCpuBackend().kernels, {}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (uint32_t seed = kSeed; seed < kSeed + kCases; ++seed) {
      const Outputs actual = EmbeddingCase(HostTables({{32, 3}}), dtype, Drawn(seed, {}));
      EXPECT_TRUE(at::equal(actual[0], EmbeddingCase(cpu, dtype, Drawn(seed, {}))[0])) << "seed " << seed;
    }
  }
}

// What a team computes does not depend on which of its lanes comes first.
TEST(KernelBodiesTest, TheOrderOfLanesChangesNoBit) {
  for (const Case& entry : {Case(RmsNormCase), Case(QkvBackwardCase), Case(HeadForwardCase), Case(HeadBackwardCase)}) {
    for (uint32_t seed = kSeed; seed < kSeed + kCases; ++seed) {
      const Outputs ascending = entry(HostTables({{64, 2}}), at::kBFloat16, Drawn(seed, {}));
      const Outputs descending = entry(HostTables({{64, 2, LaneOrder::kDescending}}), at::kBFloat16, Drawn(seed, {}));
      for (size_t i = 0; i < ascending.size(); ++i) EXPECT_TRUE(at::equal(ascending[i], descending[i])) << seed;
    }
  }
}

int64_t rows_of_heads = 0;

// What the device's tests draw where they ask for many rows: more than the grid of any GPU has teams.
TEST(KernelBodiesTest, ManyRowsAreMoreThanTheGridHasTeams) {
  constexpr int64_t kProcessors = 192, kTiles = worker::cuda::kMergeThreads / worker::cuda::kTileLanes;
  constexpr int64_t kTeams = std::max(worker::cuda::kMergeBlocks, worker::cuda::kQkvBlocks) * kTiles * kProcessors;
  static_assert(worker::cuda::kMergeThreads == worker::cuda::kQkvThreads);
  Tables noting = ComposedTables();
  noting.attention.merge = [](const worker::cuda::MergeOperands& a) { rows_of_heads = a.lse_HT.numel(); };
  noting.attention.add_parts = [](const worker::cuda::AddPartsOperands& a) {
    rows_of_heads = a.sum_CKE.size(0) * a.sum_CKE.size(1);
  };
  for (const Case& entry : {Case(MergeCase), Case(AddPartsCase)}) {
    for (uint32_t seed = kSeed; seed < kSeed + 3; ++seed) {
      entry(noting, at::kBFloat16, Drawn(seed, {.many_rows = true}));
      EXPECT_GT(rows_of_heads, kTeams);
    }
  }
  const int64_t rows = Drawn(kSeed, {.many_rows = true}).Rows();
  EXPECT_GT(rows, kProcessors * std::max(worker::cuda::kNormBlocks, worker::cuda::kSwigluBlocks));
}

// Sums stay as they were.
TEST(KernelBodiesTest, NoRowsChangeNothing) {
  for (const Case& entry :
       {Case(RmsNormCase), Case(SwigluCase), Case(QkvForwardCase), Case(QkvBackwardCase), Case(EmbeddingCase),
        Case(HeadForwardCase), Case(HeadBackwardCase), Case(MergeCase), Case(AddPartsCase)}) {
    for (uint32_t seed = kSeed; seed < kSeed + kCases; ++seed) {
      for (const at::Tensor& output : entry(HostTables({{32, 2}}), at::kBFloat16, Drawn(seed, {.no_rows = true}))) {
        EXPECT_TRUE(output.numel() == 0 || output.eq(1).all().item<bool>()) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace stemma::testing
