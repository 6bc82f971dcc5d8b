// Every fused CUDA kernel against the composed one, on the device. Skips itself where LibTorch has none.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "tests/worker/backend/cuda/kernels/kernel_cases.h"
#include "worker/backend/cuda/cuda_kernels.h"

namespace stemma::testing {
namespace {

constexpr uint32_t kSeed = 20261125;
constexpr uint32_t kCases = 12;

Tables FusedTables() { return {worker::cuda::CudaRowKernels(), worker::cuda::CudaAttentionKernels()}; }

class KernelsDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "needs a CUDA device";
  }

  // `allowed`: of what WorstError counts.
  static void ExpectTheComposed(const Case& entry, double allowed = 1) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool unaligned : {false, true}) {
        for (uint32_t i = 0; i < kCases; ++i) {
          const Placement placement{
              .device = at::kCUDA, .unaligned = unaligned, .large = i % 3 == 0, .many_rows = i % 6 == 1};
          const uint32_t seed = kSeed + i;
          const Outputs fused = entry(FusedTables(), dtype, Drawn(seed, placement));
          const Outputs again = entry(FusedTables(), dtype, Drawn(seed, placement));
          EXPECT_LE(WorstError(fused, entry(ComposedTables(), dtype, Drawn(seed, placement))), allowed)
              << c10::toString(dtype) << " seed " << seed << (unaligned ? ", unaligned" : "");
          for (size_t n = 0; n < fused.size(); ++n) {
            EXPECT_TRUE(at::equal(fused[n], again[n])) << "not the same bits twice, seed " << seed << " output " << n;
          }
        }
      }
    }
  }
};

TEST_F(KernelsDeviceTest, RmsNormIsTheComposed) { ExpectTheComposed(RmsNormCase); }
TEST_F(KernelsDeviceTest, SwigluIsTheComposed) { ExpectTheComposed(SwigluCase); }
TEST_F(KernelsDeviceTest, HeadsOfAFusedProductAreTheComposed) { ExpectTheComposed(QkvForwardCase); }
TEST_F(KernelsDeviceTest, GradientsOfAFusedProductAreTheComposed) { ExpectTheComposed(QkvBackwardCase); }
TEST_F(KernelsDeviceTest, EmbeddingGradientsAreTheComposed) { ExpectTheComposed(EmbeddingCase); }
TEST_F(KernelsDeviceTest, TheHeadsStatisticsAreTheComposed) { ExpectTheComposed(HeadForwardCase); }
TEST_F(KernelsDeviceTest, TheHeadsGradientsAreTheComposed) { ExpectTheComposed(HeadBackwardCase); }
TEST_F(KernelsDeviceTest, TheFirstNonfiniteNumberIsTheComposed) { ExpectTheComposed(NonfiniteCase); }
TEST_F(KernelsDeviceTest, TheSumOfWordsIsTheComposed) { ExpectTheComposed(WordSumCase, 0); }
TEST_F(KernelsDeviceTest, MergedAttentionIsTheComposed) { ExpectTheComposed(MergeCase); }
TEST_F(KernelsDeviceTest, AddedPartsAreTheComposed) { ExpectTheComposed(AddPartsCase); }
// Sums stay as they were.
TEST_F(KernelsDeviceTest, NoRowsChangeNothing) {
  for (const Case& entry :
       {Case(RmsNormCase), Case(SwigluCase), Case(QkvForwardCase), Case(QkvBackwardCase), Case(EmbeddingCase),
        Case(HeadForwardCase), Case(HeadBackwardCase), Case(LossCase), Case(MergeCase), Case(AddPartsCase)}) {
    const Placement none{.device = at::kCUDA, .no_rows = true};
    for (uint32_t seed = kSeed; seed < kSeed + kCases; ++seed) {
      for (const at::Tensor& output : entry(FusedTables(), at::kBFloat16, Drawn(seed, none))) {
        EXPECT_TRUE(output.numel() == 0 || output.eq(1).all().item<bool>()) << "seed " << seed;
      }
    }
  }
  const at::Tensor index = at::full({}, -2, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  FusedTables().kernels.first_nonfinite({at::empty({0}, at::kCUDA), index});
  EXPECT_EQ(index.item<int64_t>(), -1);
}

// fp64 throughout: as in kernel_bodies_test.
TEST_F(KernelsDeviceTest, TheLossIsTheComposed) { ExpectTheComposed(LossCase, 5e-8); }
TEST_F(KernelsDeviceTest, TheNormOfAVectorIsTheComposed) { ExpectTheComposed(VectorNormCase, 5e-8); }

}  // namespace
}  // namespace stemma::testing
