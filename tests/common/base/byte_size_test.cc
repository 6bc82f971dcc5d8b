#include "common/base/byte_size.h"

#include <cstdint>

#include "common/base/dtype_names.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using testing::Invalid;

TEST(ByteSizeTest, NumbersAndUnitsArePowersOf1024) {
  struct Size {
    const char* text;
    uint64_t bytes;
  };
  for (const Size& size :
       {Size{"0", 0}, Size{"7", 7}, Size{"7b", 7}, Size{"1k", 1024}, Size{"1KB", 1024}, Size{"1kib", 1024},
        Size{"2 GB", uint64_t{2} << 30}, Size{"2GiB", uint64_t{2} << 30}, Size{"3t", uint64_t{3} << 40},
        Size{"1.5GB", uint64_t{3} << 29}, Size{"0.5KB", 512}, Size{"1pb", uint64_t{1} << 50},
        Size{"18446744073709551615", UINT64_MAX}, Size{"16383pb", uint64_t{16383} << 50}}) {
    const absl::StatusOr<uint64_t> read = ParseByteSize(size.text);
    ASSERT_TRUE(read.ok()) << size.text << ": " << read.status();
    EXPECT_EQ(*read, size.bytes) << size.text;
  }
}

TEST(ByteSizeTest, WhatIsNoSizeIsRefused) {
  for (const char* text :
       {"", "GB", "-1", "+1", "1e9", "0x10", "1.5", "1.", ".5GB", "1.2.3GB", "2 apples", "1kk", "1 kb b",
        "18446744073709551616", "16384pb", "17179869184GB", "99999999999999999999GB", "nan", "infGB"}) {
    EXPECT_THAT(ParseByteSize(text).status(), Invalid("is not a size")) << text;
  }
}

TEST(DtypeNamesTest, EachHasAShortAndALongName) {
  for (const auto& [short_name, long_name] :
       {std::pair{"fp32", "float32"}, {"fp64", "float64"}, {"bf16", "bfloat16"}, {"fp16", "float16"}}) {
    EXPECT_EQ(ShortDtypeName(long_name), short_name);
    EXPECT_EQ(ShortDtypeName(short_name), short_name);
    EXPECT_EQ(LongDtypeName(short_name), long_name);
    EXPECT_EQ(LongDtypeName(long_name), long_name);
  }
  EXPECT_EQ(ShortDtypeName("fp8"), "fp8");
  EXPECT_EQ(LongDtypeName("fp8"), "fp8");
}

TEST(RunDtypeTest, EitherNameIsTakenAndFp16IsForFilesOnly) {
  EXPECT_EQ(FindRunDtype("fp32"), RunDtype::kFp32);
  EXPECT_EQ(FindRunDtype("float64"), RunDtype::kFp64);
  EXPECT_EQ(FindRunDtype("bf16"), RunDtype::kBf16);
  for (const char* name : {"fp16", "float16", "fp8", "BF16", ""}) EXPECT_EQ(FindRunDtype(name), std::nullopt) << name;
  EXPECT_EQ(RunDtypeOf(""), RunDtype::kFp32);
  EXPECT_EQ(RunDtypeOf("bfloat16"), RunDtype::kBf16);
  EXPECT_DEATH(RunDtypeOf("fp16"), "fp16 is no dtype of a run");
}

}  // namespace
}  // namespace stemma
