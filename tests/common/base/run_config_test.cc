#include "common/base/run_config.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using testing::Invalid;
using testing::IsOk;

absl::Status Check(const std::string& yaml) {
  ParsedRunConfig parsed = ParseRunConfig(yaml);
  FillDefaults(parsed.config);
  Validate(parsed);
  return ToStatus("run.yaml", parsed);
}

TEST(RunConfigTest, AFullFileIsRead) {
  const ParsedRunConfig parsed = ParseRunConfig(
      "# comment\nmodel: models/a\ndtype: fp64\nschedule: reuse\nlayout: one_by_one\nmemory_budget_bytes: 1073741824\n"
      "threads: 2\nlimits:\n  groups: 16\n  message_bytes: 1048576\n");
  EXPECT_THAT(ToStatus("run.yaml", parsed), IsOk());
  EXPECT_EQ(parsed.config.model(), "models/a");
  EXPECT_EQ(parsed.config.dtype(), "fp64");
  EXPECT_EQ(parsed.config.schedule(), v1::REUSE);
  EXPECT_EQ(parsed.config.layout(), v1::ONE_BY_ONE);
  EXPECT_EQ(parsed.config.memory_budget_bytes(), 1073741824u);
  EXPECT_EQ(parsed.config.limits().groups(), 16u);
  EXPECT_EQ(parsed.line_of_key.at("limits.groups"), 9);
}

TEST(RunConfigTest, DefaultsFillWhatIsAbsentAndNothingElse) {
  v1::RunConfig config;
  config.set_dtype("bf16");
  config.mutable_limits()->set_groups(3);
  FillDefaults(config);
  EXPECT_EQ(config.dtype(), "bf16");
  EXPECT_EQ(config.limits().groups(), 3u);
  EXPECT_EQ(config.schedule(), v1::AUTO);
  EXPECT_EQ(config.head_chunk_tokens(), 0u) << "the device chooses";
  EXPECT_EQ(config.split_groups(), v1::SPLIT_AUTO);
  EXPECT_EQ(config.prefix_kv(), v1::PREFIX_KV_AUTO);
  EXPECT_EQ(config.reduce_gradients(), v1::REDUCE_GRADIENTS_AUTO);
  EXPECT_EQ(config.limits().message_bytes(), 64u << 20);
  ParsedRunConfig parsed{.config = config, .line_of_key = {}, .problems = {}};
  parsed.config.set_model("m");
  Validate(parsed);
  EXPECT_THAT(ToStatus("flags", parsed), IsOk());
}

TEST(RunConfigTest, ReadsWhetherGroupsAreSplit) {
  EXPECT_EQ(ParseRunConfig("model: m\nsplit_groups: on\n").config.split_groups(), v1::SPLIT_ON);
  EXPECT_EQ(ParseRunConfig("model: m\nsplit_groups: off\n").config.split_groups(), v1::SPLIT_OFF);
  EXPECT_THAT(Check("model: m\nsplit_groups: maybe\n"), Invalid("\"maybe\" is not one of auto, on, off"));
  EXPECT_EQ(ParseRunConfig("model: m\nprefix_kv: hold\n").config.prefix_kv(), v1::PREFIX_KV_HOLD);
  EXPECT_EQ(ParseRunConfig("model: m\nprefix_kv: regather\n").config.prefix_kv(), v1::PREFIX_KV_REGATHER);
  EXPECT_THAT(Check("model: m\nprefix_kv: keep\n"), Invalid("\"keep\" is not one of auto, hold, regather"));
  EXPECT_EQ(ParseRunConfig("model: m\nreduce_gradients: step\n").config.reduce_gradients(), v1::REDUCE_GRADIENTS_STEP);
  EXPECT_EQ(ParseRunConfig("model: m\nreduce_gradients: sweep\n").config.reduce_gradients(),
            v1::REDUCE_GRADIENTS_SWEEP);
  EXPECT_THAT(Check("model: m\nreduce_gradients: once\n"), Invalid("\"once\" is not one of auto, sweep, step"));
}

TEST(RunConfigTest, ReadsWhatALossLeaves) {
  v1::RunConfig config;
  FillDefaults(config);
  EXPECT_EQ(config.durability(), v1::REPLAY);
  EXPECT_EQ(ParseRunConfig("model: m\ndurability: rewind\n").config.durability(), v1::REWIND);
  EXPECT_THAT(Check("model: m\ndurability: maybe\n"), Invalid("\"maybe\" is not one of rewind, replay"));
}

TEST(RunConfigTest, ReadsWhenTheStateIsSaved) {
  v1::RunConfig config;
  FillDefaults(config);
  EXPECT_EQ(config.checkpoints().every_steps(), 100u) << "else what is kept of requests grows without end";
  EXPECT_EQ(config.checkpoints().every_minutes(), 60u);
  EXPECT_EQ(config.checkpoints().keep(), 2u);
  config = {};
  config.set_durability(v1::REWIND);
  FillDefaults(config);
  EXPECT_EQ(config.checkpoints().every_steps(), 0u) << "nothing else is kept either";
  config = ParseRunConfig("model: m\ncheckpoints:\n  every_steps: 7\n  keep: 5\n").config;
  EXPECT_EQ(config.checkpoints().every_steps(), 7u);
  EXPECT_EQ(config.checkpoints().keep(), 5u);
  EXPECT_TRUE(ParseRunConfig("model: m\ncheckpoints:\n  manual: true\n").config.checkpoints().manual());
  EXPECT_THAT(Check("model: m\ncheckpoints: {every_steps: 0, manual: true}\n"), IsOk());
  EXPECT_THAT(Check("model: m\ncheckpoints:\n  every_steps: 7\n  manual: true\n"),
              Invalid("line 4: checkpoints.manual: true contradicts checkpoints.every_steps 7"));
  EXPECT_THAT(Check("model: m\ncheckpoints:\n  keep: 1\n"), Invalid("1 is not from 2 to"));
}

TEST(RunConfigTest, ThreeMistakesAreReportedAsThreeWithKeyAndLine) {
  const absl::Status status = Check("model: m\ndtpe: fp32\nschedule: fast\nlimits:\n  groups: many\n");
  EXPECT_THAT(status, Invalid("run.yaml: 3 problems"));
  EXPECT_THAT(status, Invalid("\n  line 2: dtpe: unknown key; known: model, dtype"));
  EXPECT_THAT(status, Invalid("\n  line 3: schedule: \"fast\" is not one of auto, reuse, dense"));
  EXPECT_THAT(status, Invalid("\n  line 5: limits.groups: \"many\" is not a whole number"));
}

TEST(RunConfigTest, AModelsPathHasNoControlCharacters) {
  EXPECT_THAT(Check("model: \"a\\0b\"\n"), Invalid("line 1: model: has the control character \\x00 at byte 2"));
  EXPECT_THAT(Check("model: \"ab\\x1b\"\n"), Invalid("\\x1b at byte 3"));
}

TEST(RunConfigTest, ValuesThatCannotRunAreReportedBesideThoseThatCannotBeRead) {
  const absl::Status status =
      Check("dtype: fp8\nthreads: -1\nlayout: one_by_one\nwave_suffixes: 4\nlimits: {message_bytes: 1}\n");
  EXPECT_THAT(status, Invalid("5 problems"));
  EXPECT_THAT(status, Invalid("\n  model: is missing"));
  EXPECT_THAT(status, Invalid("line 1: dtype: \"fp8\" is not one of fp32, fp64, bf16"));
  EXPECT_THAT(status, Invalid("line 2: threads: \"-1\""));
  EXPECT_THAT(status, Invalid("line 4: wave_suffixes: 4 contradicts layout"));
  EXPECT_THAT(status, Invalid("line 5: limits.message_bytes: 1 is not from 65536"));
}

TEST(RunConfigTest, ASecondDocumentIsRefusedWithItsLine) {
  EXPECT_THAT(Check("model: m\n---\nmodel: n\n"), Invalid("line 2: (file): a second YAML document"));
  EXPECT_THAT(Check("model: m\n---\n"), Invalid("line 2: (file): a second YAML document"));
  EXPECT_THAT(Check("model: m\n--- {}\n--- {}\n"), Invalid("run.yaml: 1 problem\n"));
  EXPECT_THAT(Check("# one document, with both of its marks\n---\nmodel: m\n...\n"), IsOk());
}

TEST(RunConfigTest, AKeyThatCouldNotBeReadIsReportedOnce) {
  EXPECT_THAT(Check("model: m\nhead_chunk_tokens: 1.5\n"), Invalid("run.yaml: 1 problem\n"));
}

TEST(RunConfigTest, RepeatedKeysAndWrongShapesAreReported) {
  EXPECT_THAT(Check("model: m\nmodel: n\n"), Invalid("line 2: model: appears twice"));
  EXPECT_THAT(Check("model: [m]\n"), Invalid("line 1: model: must be one value"));
  EXPECT_THAT(Check("model: m\nlimits: 3\n"), Invalid("line 2: limits: must be a mapping"));
  EXPECT_THAT(Check("- model\n"), Invalid("must be a mapping"));
  EXPECT_THAT(Check("model: \"m\nx"), Invalid("not YAML"));
  EXPECT_THAT(Check(""), Invalid("model: is missing"));
}

TEST(RunConfigTest, NumbersThatDoNotFitAreReported) {
  EXPECT_THAT(Check("model: m\nthreads: 4294967296\n"), Invalid("line 2: threads"));
  EXPECT_THAT(Check("model: m\nmemory_budget_bytes: 18446744073709551616\n"), Invalid("line 2: memory_budget_bytes"));
  EXPECT_THAT(Check("model: m\nlimits: {message_bytes: 4294967296}\n"), Invalid("limits.message_bytes"));
}

TEST(RunConfigTest, BothEndsOfARangeAreTaken) {
  EXPECT_THAT(Check("model: m\nthreads: 4096\n"), IsOk());
  EXPECT_THAT(Check("model: m\nthreads: 4097\n"), Invalid("4097 is not from 0 to 4096"));
  for (const std::string key : {"memory_budget_bytes", "host_memory_bytes"}) {
    EXPECT_THAT(Check("model: m\n" + key + ": 1125899906842624\n"), IsOk());
    for (const std::string more : {"1125899906842625", "9223372036854775807", "18446744073709551615"}) {
      EXPECT_THAT(Check("model: m\n" + key + ": " + more + "\n"),
                  Invalid("line 2: " + key + ": " + more + " is not from 0 to 1125899906842624"));
    }
  }
  EXPECT_THAT(Check("model: m\nlimits: {string_bytes: 65536, groups: 1, message_bytes: 65536}\n"), IsOk());
  EXPECT_THAT(Check("model: m\nlimits: {message_bytes: 65535}\n"), Invalid("65535 is not from 65536"));
  for (const std::string limit : {"request_bytes_in_flight", "receiving_bytes"}) {
    EXPECT_THAT(Check("model: m\nlimits: {message_bytes: 100000, " + limit + ": 100000}\n"), IsOk());
    EXPECT_THAT(Check("model: m\nlimits: {message_bytes: 100000, " + limit + ": 99999}\n"),
                Invalid("limits." + limit + ": is below limits.message_bytes"));
  }
}

TEST(RunConfigTest, AZeroIsRefusedWhereTheLowestValueIsMore) {
  const absl::Status status = Check(
      "model: m\nthreads: 0\nmesh: {dp: 0, tp: 2}\ncheckpoints:\n  every_minutes: 0\n  keep: 0\n"
      "limits:\n  message_bytes: 0\n  groups: 00\n  steps: 0x\n");
  EXPECT_THAT(status, Invalid("run.yaml: 6 problems"));
  EXPECT_THAT(status, Invalid("line 3: mesh.dp: 0 is not from 1 to 4096; without the key it is 1\n"));
  EXPECT_THAT(status,
              Invalid("line 5: checkpoints.every_minutes: 0 is not from 1 to 525600; without the key it is 60\n"));
  EXPECT_THAT(status, Invalid("line 6: checkpoints.keep: 0 is not from 2 to 65536; without the key it is 2\n"));
  EXPECT_THAT(status, Invalid("line 8: limits.message_bytes: 0 is not from 65536 to"));
  EXPECT_THAT(status, Invalid("line 9: limits.groups: 0 is not from 1 to"));
  EXPECT_THAT(status, Invalid("line 10: limits.steps: \"0x\" is not a whole number"));
}

TEST(RunConfigTest, AZeroThatMeansSomethingIsTaken) {
  EXPECT_THAT(Check("model: m\nthreads: 0\nmemory_budget_bytes: 0\nhost_memory_bytes: 0\nprefix_block_rows: 0\n"),
              IsOk());
  v1::RunConfig config = ParseRunConfig("model: m\ncheckpoints:\n  every_steps: 0\n").config;
  FillDefaults(config);
  EXPECT_EQ(config.durability(), v1::REPLAY);
  EXPECT_TRUE(config.checkpoints().manual()) << "none is saved but on demand";
  EXPECT_EQ(config.checkpoints().every_steps(), 0u);
  EXPECT_FALSE(ParseRunConfig("model: m\ncheckpoints:\n  every_steps: x\n").config.checkpoints().manual());
  EXPECT_FALSE(ParseRunConfig("model: m\ncheckpoints:\n  keep: 3\n").config.checkpoints().manual());
}

TEST(RunConfigTest, EveryWordOfAnEnumIsThatOfTheFile) {
  EXPECT_EQ(RunConfigWord(*v1::Offload_descriptor()->FindValueByName("OFFLOAD_ON")), "on");
  EXPECT_EQ(RunConfigWord(*v1::WaveLayout_descriptor()->FindValueByName("ONE_BY_ONE")), "one_by_one");
  EXPECT_EQ(RunConfigWord(*v1::TapePolicy_descriptor()->FindValueByName("S1")), "s1");
  EXPECT_EQ(RunConfigWord(*v1::Offload_descriptor()->FindValueByName("OFFLOAD_UNSPECIFIED")), "");
}

TEST(RunConfigTest, AMissingFileIsNamed) {
  EXPECT_THAT(ReadRunConfig("no/such/run.yaml"),
              testing::StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr("no/such/run.yaml")));
}

TEST(RunConfigTest, WhatIsForcedOfMemoryIsReadByItsWords) {
  const ParsedRunConfig parsed = ParseRunConfig(
      "model: m\nprefix_policy: s5\nsuffix_policy: s2\nprefix_block_rows: 512\noffload: off\nhost_memory_bytes: "
      "1048576\n"
      "optimizer_residency: host\n");
  EXPECT_THAT(ToStatus("run.yaml", parsed), IsOk());
  EXPECT_EQ(parsed.config.prefix_policy(), v1::S5);
  EXPECT_EQ(parsed.config.suffix_policy(), v1::S2);
  EXPECT_EQ(parsed.config.prefix_block_rows(), 512u);
  EXPECT_EQ(parsed.config.offload(), v1::OFFLOAD_OFF);
  EXPECT_EQ(parsed.config.host_memory_bytes(), 1048576u);
  EXPECT_EQ(parsed.config.optimizer_residency(), v1::HOST);
}

TEST(RunConfigTest, MemoryThatContradictsItselfIsReportedAllAtOnce) {
  const absl::Status status = Check(
      "model: m\nprefix_policy: s5\nsuffix_policy: s5\noffload: on\n"
      "prefix_block_rows: 100000000\n");
  EXPECT_THAT(status, Invalid("run.yaml: 3 problems"));
  EXPECT_THAT(status, Invalid("line 3: suffix_policy: s5 is of a prefix only"));
  EXPECT_THAT(status, Invalid("line 4: offload: on contradicts prefix_policy s5"));
  EXPECT_THAT(status, Invalid("line 5: prefix_block_rows: 100000000 is not from 0 to"));
  EXPECT_THAT(Check("model: m\noffload: maybe\n"), Invalid("\"maybe\" is not one of on, off"));
  EXPECT_THAT(Check("model: m\nprefix_policy: s9\n"), Invalid("\"s9\" is not one of s0, s1, s2, s3, s4, s5"));
}

}  // namespace
}  // namespace stemma
