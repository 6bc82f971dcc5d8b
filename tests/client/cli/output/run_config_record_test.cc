#include "client/cli/output/run_config_record.h"

#include "common/base/run_config.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

TEST(RunConfigRecordTest, ChoicesAreInTheWordsOfRunYaml) {
  v1::RunConfig config;
  config.set_prefix_policy(v1::S1);
  config.set_offload(v1::OFFLOAD_OFF);
  config.set_layout(v1::ONE_BY_ONE);
  config.set_wave_suffixes(4);
  config.set_durability(v1::REWIND);
  FillDefaults(config);
  const Record record = RunConfigRecord(config);
  EXPECT_EQ(record["schedule"], "auto");
  EXPECT_EQ(record["split_groups"], "auto");
  EXPECT_EQ(record["prefix_policy"], "s1");
  EXPECT_EQ(record["offload"], "off");
  EXPECT_EQ(record["layout"], "one_by_one");
  EXPECT_EQ(record["durability"], "rewind");
  EXPECT_EQ(record["wave_suffixes"], 4);
  EXPECT_EQ(record["head_chunk_tokens"], "the worker's device chooses");
  config.set_head_chunk_tokens(512);
  EXPECT_EQ(RunConfigRecord(config)["head_chunk_tokens"], 512);
}

TEST(RunConfigRecordTest, WhatNothingForcesIsThePlanners) {
  v1::RunConfig config;
  FillDefaults(config);
  const Record record = RunConfigRecord(config);
  for (const char* key : {"layout", "prefix_policy", "suffix_policy", "offload", "optimizer_residency", "wave_suffixes",
                          "prefix_block_rows"}) {
    EXPECT_EQ(record[key], "the planner chooses") << key;
  }
}

TEST(RunConfigRecordTest, WhatAServerDoesNotSayIsLeftOpen) {
  const Record record = RunConfigRecord(v1::RunConfig());
  EXPECT_TRUE(record["schedule"].is_null());
  EXPECT_TRUE(record["durability"].is_null());
}

}  // namespace
}  // namespace stemma::cli
