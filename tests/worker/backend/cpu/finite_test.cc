// AllFinite and FirstNonfinite against ATen's isfinite: every place of arrays of every small length, and large arrays.
#include "worker/backend/cpu/finite.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace stemma::worker::kernels {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kBFloat16, at::kFloat, at::kDouble};
const double kBad[] = {std::nan(""), -std::nan(""), std::numeric_limits<double>::infinity(),
                       -std::numeric_limits<double>::infinity()};

// What is nearly not finite: the largest numbers, the smallest, zeros.
at::Tensor Extremes(int64_t count, at::ScalarType dtype) {
  const double largest = dtype == at::kDouble  ? std::numeric_limits<double>::max()
                         : dtype == at::kFloat ? std::numeric_limits<float>::max()
                                               : 3.38953138925153547e38;  // bf16's
  const at::Tensor values = at::tensor({largest, -largest, 0.0, -0.0, 5e-324, 1.0}, at::kDouble).to(dtype);
  return values.repeat({count / 6 + 1}).narrow(0, 0, count).contiguous();
}

TEST(FiniteTest, EveryPlaceOfEveryShortArrayIsRead) {
  for (const at::ScalarType dtype : kDtypes) {
    for (int64_t count = 0; count <= 70; ++count) {
      at::Tensor values = Extremes(count, dtype);
      ASSERT_TRUE(at::isfinite(values).all().item<bool>());
      ASSERT_TRUE(AllFinite(values)) << dtype << " " << count;
      ASSERT_EQ(FirstNonfinite(values), -1);
      for (int64_t bad = 0; bad < count; ++bad) {
        values = Extremes(count, dtype);
        values[bad] = kBad[bad % 4];
        ASSERT_FALSE(AllFinite(values)) << dtype << " " << count << " at " << bad;
        ASSERT_EQ(FirstNonfinite(values), bad);
      }
    }
  }
}

TEST(FiniteTest, LargeArraysAreReadByAllThreads) {
  for (const at::ScalarType dtype : kDtypes) {
    const int64_t count = 300'001;
    at::Tensor values = Extremes(count, dtype);
    ASSERT_TRUE(AllFinite(values));
    for (const int64_t bad : {int64_t{0}, int64_t{32768}, int64_t{150'000}, count - 1}) {
      at::Tensor one = values.clone();
      one[bad] = kBad[bad % 4];
      EXPECT_FALSE(AllFinite(one)) << dtype << " at " << bad;
      EXPECT_EQ(FirstNonfinite(one), bad);
      EXPECT_TRUE(AllFinite(one.narrow(0, 0, bad))) << "the views around it are sound";
      EXPECT_TRUE(AllFinite(one.narrow(0, bad + 1, count - bad - 1)));
    }
  }
}

}  // namespace
}  // namespace stemma::worker::kernels
