#include "worker/backend/cuda/attention/buckets.h"

#include <gtest/gtest.h>

namespace stemma::testing {
namespace {

using worker::cuda::AdmittedShapes;
using worker::cuda::BucketOfRows;
using worker::cuda::ShapeFamily;

TEST(BucketsTest, RowsAreRoundedUpToTheirBucket) {
  for (const auto& [rows, bucket] : {std::pair<int64_t, int64_t>{1, 128},
                                     {64, 128},
                                     {128, 128},
                                     {129, 256},
                                     {192, 256},
                                     {4096, 4096},
                                     {4097, 4352},
                                     {16384, 16384},
                                     {16385, 17408},
                                     {17408, 17408}}) {
    EXPECT_EQ(BucketOfRows(rows), bucket) << rows;
  }
}

TEST(BucketsTest, ABucketHoldsItsRowsIsItsOwnAndPadsLittle) {
  int64_t last = 0, buckets = 0;
  for (int64_t rows = 1; rows <= 65536; ++rows) {
    const int64_t bucket = BucketOfRows(rows);
    ASSERT_GE(bucket, rows);
    ASSERT_EQ(BucketOfRows(bucket), bucket);
    ASSERT_EQ(bucket % 128, 0) << "an odd half of a bucket's tile made NaN in some versions of cuDNN";
    ASSERT_TRUE(rows < 2048 || (bucket - rows) * 16 <= bucket) << rows;
    ASSERT_GE(bucket, last);
    buckets += bucket > last ? 1 : 0;
    last = bucket;
  }
  EXPECT_EQ(buckets, 32 + 48 + 48) << "as many plans for each number of keys";
}

const ShapeFamily kFamily{.heads = 32, .kv_heads = 8, .head_size = 128};

TEST(AdmittedShapesTest, NothingIsAdmittedAtFirst) {
  const AdmittedShapes none;
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.Admits({kFamily, 1, 128, 128}));
}

TEST(AdmittedShapesTest, AdmitsWhatLiesInsideAndItsFamilyOnly) {
  AdmittedShapes admitted;
  admitted.Admit({.family = kFamily,
                  .max_batch = 2,
                  .min_rows = 256,
                  .max_rows = 4096,
                  .min_keys = 128,
                  .max_keys = 8192,
                  .keys_multiple = 64});
  EXPECT_FALSE(admitted.empty());
  EXPECT_TRUE(admitted.Admits({kFamily, 2, 129, 192})) << "129 rows run as 256";
  EXPECT_TRUE(admitted.Admits({kFamily, 1, 4096, 8192}));
  EXPECT_FALSE(admitted.Admits({kFamily, 3, 256, 128})) << "batch";
  EXPECT_FALSE(admitted.Admits({kFamily, 1, 128, 128})) << "too few rows";
  EXPECT_FALSE(admitted.Admits({kFamily, 1, 4097, 128})) << "too many rows";
  EXPECT_FALSE(admitted.Admits({kFamily, 1, 256, 64})) << "too few keys";
  EXPECT_FALSE(admitted.Admits({kFamily, 1, 256, 8256})) << "too many keys";
  EXPECT_FALSE(admitted.Admits({kFamily, 1, 256, 200})) << "no multiple";
  for (const ShapeFamily& other :
       {ShapeFamily{.heads = 16, .kv_heads = 8, .head_size = 128},
        ShapeFamily{.heads = 32, .kv_heads = 4, .head_size = 128},
        ShapeFamily{.heads = 32, .kv_heads = 8, .head_size = 64},
        ShapeFamily{.heads = 32, .kv_heads = 8, .head_size = 128, .dtype = c10::ScalarType::Half},
        ShapeFamily{.heads = 32, .kv_heads = 8, .head_size = 128, .causal = true}}) {
    EXPECT_FALSE(admitted.Admits({other, 1, 256, 256}));
  }
}

TEST(AdmittedShapesTest, MostKeysAreTheLongestStartThatIsAdmitted) {
  AdmittedShapes admitted;
  EXPECT_EQ(admitted.MostKeys({kFamily, 1, 256, 500}), 0);
  admitted.Admit(
      {.family = kFamily, .min_rows = 256, .max_rows = 4096, .min_keys = 128, .max_keys = 8192, .keys_multiple = 128});
  for (const auto& [keys, most] :
       {std::pair{127, 0}, {128, 128}, {255, 128}, {8191, 8064}, {8192, 8192}, {20000, 8192}}) {
    EXPECT_EQ(admitted.MostKeys({kFamily, 1, 256, keys}), most) << keys;
  }
  EXPECT_EQ(admitted.MostKeys({kFamily, 1, 4097, 500}), 0) << "too many rows";
  EXPECT_EQ(admitted.MostKeys({kFamily, 2, 256, 500}), 0) << "batch";
}

TEST(AdmittedShapesTest, ACausalCallHasAsManyKeysAsRows) {
  AdmittedShapes admitted;
  ShapeFamily causal = kFamily;
  causal.causal = true;
  admitted.Admit({.family = causal, .min_rows = 128, .max_rows = 1024});
  EXPECT_TRUE(admitted.Admits({causal, 1, 1000, 1000}));
  EXPECT_FALSE(admitted.Admits({causal, 1, 1000, 1024}));
}

}  // namespace
}  // namespace stemma::testing
