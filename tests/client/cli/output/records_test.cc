#include "client/cli/output/records.h"

#include <sstream>

#include "client/cli/output/request_records.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

const std::vector<Column> kColumns = {{"id", "id", 4, true}, {"loss", "loss", 10}, {"n", "n", 3}};

TEST(RecordsTest, ATableHasItsHeaderOnceAndAlignedCells) {
  std::ostringstream out;
  RecordWriter writer({}, kColumns, out);
  writer.Write({{"id", "a"}, {"loss", 0.123456789}, {"n", 3}});
  writer.Write({{"id", "bb"}, {"loss", nullptr}, {"n", std::vector<int>{1, 2}}});
  EXPECT_EQ(out.str(),
            "id          loss    n\n"
            "a       0.123457    3\n"
            "bb             -    2\n");
}

TEST(RecordsTest, JsonIsOneObjectALineWithEveryDigit) {
  std::ostringstream out;
  RecordWriter writer({.format = OutputFormat::kJson}, kColumns, out);
  writer.Write({{"id", "a"}, {"loss", 0.30000000000000004}, {"extra", true}});
  EXPECT_EQ(out.str(), "{\"id\":\"a\",\"loss\":0.30000000000000004,\"extra\":true}\n");
}

// A uid of a trace may hold what a terminal obeys, or end a row.
TEST(RecordsTest, ACellCommandsNoTerminal) {
  std::ostringstream table, fields;
  RecordWriter writer({}, kColumns, table);
  writer.Write({{"id", "\x1b[31mU\nX"}, {"loss", nullptr}, {"n", 3}});
  EXPECT_EQ(table.str(),
            "id          loss    n\n"
            "\\x1b[31mU\\nX           -    3\n");
  WriteFields({}, {{"id", "\x1b]0;p\x07"}}, fields);
  EXPECT_EQ(fields.str(), "id  \\x1b]0;p\\x07\n");
}

// File names need not be UTF-8, as JSON has to be.
TEST(RecordsTest, BytesThatAreNotUtf8AreReplacedInJson) {
  const Record record = {{"path", "tr\xff.jsonl"}, {"list", std::vector<std::string>{"\xff"}}};
  std::ostringstream out, lines, table;
  WriteFields({.format = OutputFormat::kJson}, record, out);
  EXPECT_EQ(out.str(), "{\"path\":\"tr\uFFFD.jsonl\",\"list\":[\"\uFFFD\"]}\n");
  RecordWriter({.format = OutputFormat::kJson}, kColumns, lines).Write(record);
  EXPECT_EQ(lines.str(), out.str());
  WriteFields({}, record, table);
  EXPECT_EQ(table.str(), "path  tr\xff.jsonl\nlist  [\"\uFFFD\"]\n") << "a table shows a name as it is";
  EXPECT_EQ(JsonText({{"a", 1}}, /*indent=*/2), "{\n  \"a\": 1\n}");
}

TEST(RecordsTest, OnlyABoldHeaderHasEscapes) {
  std::ostringstream plain, bold;
  RecordWriter({}, kColumns, plain).Write({{"id", "a"}});
  RecordWriter({.bold_headers = true}, kColumns, bold).Write({{"id", "a"}});
  EXPECT_EQ(plain.str().find('\x1b'), std::string::npos);
  EXPECT_NE(bold.str().find("\x1b[1m"), std::string::npos);
}

TEST(RecordsTest, FieldsOfNestedObjectsAreJoinedByDots) {
  std::ostringstream out;
  WriteFields({}, {{"a", 1}, {"model", {{"step", 7}, {"tied", false}}}, {"list", {"x", "y"}}}, out);
  EXPECT_EQ(out.str(),
            "a           1\n"
            "model.step  7\n"
            "model.tied  no\n"
            "list        [\"x\",\"y\"]\n");
}

TEST(RecordsTest, WideIntegersOfAMessageAreNumbers) {
  v1::ServerInfo info;
  info.mutable_config()->set_memory_budget_bytes(uint64_t{1} << 40);
  const Record record = MessageRecord(info);
  EXPECT_TRUE(record["config"]["memory_budget_bytes"].is_number());
  EXPECT_EQ(record["config"]["memory_budget_bytes"].get<uint64_t>(), uint64_t{1} << 40);
}

TEST(RecordsTest, AStepShowsWhatTheServerReportedAndNullElsewhere) {
  v1::StepResult step;
  step.set_step(3);
  step.set_outcome(v1::StepResult::APPLIED);
  (*step.mutable_metrics())["actor/loss"] = 0.25;
  (*step.mutable_metrics())["prefix/tokens_saved"] = 40;
  const Record record = StepRecord(step);
  EXPECT_EQ(record["loss"].get<double>(), 0.25);
  EXPECT_EQ(record["tokens_saved"].dump(), "40");
  EXPECT_TRUE(record["grad_norm"].is_null());
}

}  // namespace
}  // namespace stemma::cli
