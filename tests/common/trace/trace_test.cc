#include "common/trace/trace.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "common/base/arrays.h"
#include "common/base/digest.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using testing::Invalid;
using testing::IsOk;
using testing::TempFolder;

constexpr char kSchema[] = "{\"schema\": \"stemma.trace.v1\"}\n";
constexpr char kLine[] =
    R"({"header": {"loss": {"loss_mode": "vanilla", "clip_ratio_low": 0.2, "temperature": 1.0},)"
    R"( "adam": {"learning_rate": 1e-6, "weight_decay_scope": "ALL", "max_grad_norm": 1}, "old": {"from": "CLIENT"}},)"
    R"( "groups": [{"uid": "g0", "prompt_tokens": [5, 6, 7], "rollouts": [)"
    R"({"rollout_id": "g0/0", "response_tokens": [8, 9], "response_mask": [1, 0], "old_log_probs": [-1.2, -0.3],)"
    R"( "ref_log_prob": "zczMvwAAgD8=", "advantage": 0.5}]}]})";

// kLine with one piece replaced.
std::string Replaced(const std::string& from, const std::string& to) {
  std::string line = kLine;
  const size_t at = line.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return line.replace(at, from.size(), to);
}

TEST(TraceJsonTest, ALineIsRead) {
  const auto request = ParseTraceRequest(kLine);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->header.loss().clip_ratio_low(), 0.2);
  EXPECT_EQ(request->header.adam().weight_decay_scope(), v1::AdamParams::ALL);
  EXPECT_EQ(request->header.old().from(), v1::LogProbSource::CLIENT);
  EXPECT_FALSE(request->header.has_ref());
  ASSERT_EQ(request->groups.size(), 1u);
  const v1::Rollout& rollout = request->groups[0].rollouts(0);
  EXPECT_EQ(TokenArray(request->groups[0].prompt_tokens()).ToVector(), (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(rollout.response_mask(), "\x01");
  EXPECT_EQ(FloatArray(rollout.old_log_probs()).ToVector(), (std::vector<float>{-1.2f, -0.3f}));
  EXPECT_EQ(FloatArray(rollout.ref_log_prob()).ToVector(), (std::vector<float>{-1.6f, 1.0f}));
  EXPECT_EQ(rollout.advantage(), 0.5);
}

TEST(TraceJsonTest, MistakesAreNamedByTheirPath) {
  const auto parse = [](const std::string& from, const std::string& to) {
    return ParseTraceRequest(Replaced(from, to));
  };
  EXPECT_THAT(parse("clip_ratio_low", "clip_low"), Invalid("header.loss.clip_low: unknown field"));
  EXPECT_THAT(parse("rollout_id", "id"), Invalid("groups[0].rollouts[0].id: unknown field"));
  EXPECT_THAT(parse("\"groups\"", "\"group\""), Invalid("group: unknown field"));
  EXPECT_THAT(parse("\"CLIENT\"", "\"client\""), Invalid("header.old.from: must be one of CLIENT, ROLLOUT"));
  EXPECT_THAT(parse("\"CLIENT\"", "1"), Invalid("header.old.from: must be one of"));
  EXPECT_THAT(parse("0.2", "\"0.2\""), Invalid("header.loss.clip_ratio_low: must be a number, is \"0.2\""));
  EXPECT_THAT(parse("0.2", "null"), Invalid("header.loss.clip_ratio_low: is null"));
  EXPECT_THAT(parse("\"old\":", "\"ppo_epochs\": 4294967295, \"old\":"), IsOk());
  EXPECT_THAT(parse("\"old\":", "\"ppo_epochs\": 4294967296, \"old\":"), Invalid("header.ppo_epochs: must be"));
  EXPECT_THAT(parse("[5, 6, 7]", "[5, 6.5]"), Invalid("groups[0].prompt_tokens[1]: must be a token id, is 6.5"));
  EXPECT_THAT(parse("[5, 6, 7]", "[2147483648]"), Invalid("groups[0].prompt_tokens[0]: must be a token id"));
  EXPECT_THAT(parse("[5, 6, 7]", "[-2147483648]"), IsOk()) << "admission says that it is none of the vocabulary";
  EXPECT_THAT(parse("[5, 6, 7]", "[5, -2147483649]"), Invalid("groups[0].prompt_tokens[1]: must be a token id"));
  EXPECT_THAT(parse("[5, 6, 7]", "7"), Invalid("groups[0].prompt_tokens: must be a list of numbers or base64"));
  EXPECT_THAT(parse("-0.3", "1e39"), Invalid("old_log_probs[1]: must be a float32 number"));
  EXPECT_THAT(parse("-0.3", "NaN"), Invalid("not JSON at byte"));
  EXPECT_THAT(parse("[1, 0]", "[1, 2]"), Invalid("response_mask[1]: must be 0 or 1"));
  EXPECT_THAT(parse("[1, 0]", "[1]"), Invalid("response_mask: has 1 elements, response_tokens has 2"));
  EXPECT_THAT(parse("[1, 0]", "[1, 0, 0]"), Invalid("response_mask: has 3 elements, response_tokens has 2"));
  EXPECT_THAT(parse("[1, 0]", "[]"), Invalid("response_mask: has 0 elements"));
  EXPECT_THAT(parse("zczMvwAAgD8=", "zcz*"), Invalid("ref_log_prob: is not base64"));
  EXPECT_THAT(parse("zczMvwAAgD8=", "zczM"), Invalid("ref_log_prob: its base64 holds 3 bytes"));
  EXPECT_THAT(parse("\"advantage\": 0.5", "\"advantage\": 0.5, \"token_advantages\": [1, 1]"),
              Invalid("only one of advantages"));
  EXPECT_THAT(ParseTraceRequest("{\"header\": {}}"), Invalid("groups: is missing"));
  EXPECT_THAT(ParseTraceRequest("[]"), Invalid("must be an object"));
}

TEST(TraceJsonTest, WrittenLinesReadBackBitForBit) {
  auto request = ParseTraceRequest(kLine);
  ASSERT_THAT(request, IsOk());
  std::mt19937 random(1);
  std::vector<float> values;
  while (values.size() < 20000) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(value)) values.push_back(value);
  }
  v1::Rollout& rollout = *request->groups[0].mutable_rollouts(0);
  rollout.set_old_log_probs(PackArray(values));
  for (const TraceArrays arrays : {TraceArrays::kNumbers, TraceArrays::kBase64}) {
    const auto text = FormatTraceRequest(*request, arrays);
    ASSERT_THAT(text, IsOk());
    EXPECT_EQ(text->find('\n'), std::string::npos);
    const auto back = ParseTraceRequest(*text);
    ASSERT_THAT(back, IsOk());
    EXPECT_TRUE(back->groups[0].SerializeAsString() == request->groups[0].SerializeAsString());
    EXPECT_EQ(DigestOf(back->header, back->groups), DigestOf(request->header, request->groups));
  }
}

TEST(TraceJsonTest, NumbersAreWrittenShort) {
  const auto text = FormatTraceRequest(*ParseTraceRequest(kLine), TraceArrays::kNumbers);
  ASSERT_THAT(text, IsOk());
  EXPECT_NE(text->find("\"old_log_probs\":[-1.2,-0.3]"), std::string::npos) << *text;
  EXPECT_NE(text->find("\"response_mask\":[1,0]"), std::string::npos) << *text;
}

TEST(TraceJsonTest, WhatIsNotFiniteCannotBeWrittenAsNumbers) {
  auto request = ParseTraceRequest(kLine);
  request->groups[0].mutable_rollouts(0)->set_old_log_probs(PackArray(std::vector<float>{0, NAN}));
  EXPECT_THAT(FormatTraceRequest(*request, TraceArrays::kNumbers),
              Invalid("groups[0].rollouts[0].old_log_probs[1]: is not finite"));
  EXPECT_THAT(FormatTraceRequest(*request, TraceArrays::kBase64), IsOk());
  request->groups[0].mutable_rollouts(0)->set_advantage(HUGE_VAL);
  EXPECT_THAT(FormatTraceRequest(*request, TraceArrays::kBase64),
              Invalid("groups[0].rollouts[0].advantage: is not finite"));
}

TEST(TraceJsonTest, AMaskOfAnotherLengthCannotBeWrittenAsNumbers) {
  auto request = ParseTraceRequest(kLine);
  request->groups[0].mutable_rollouts(0)->set_response_tokens(PackArray(std::vector<int32_t>(9, 8)));
  EXPECT_FALSE(FormatTraceRequest(*request, TraceArrays::kNumbers).ok()) << "one byte, for nine tokens";
}

class TraceFileTest : public ::testing::Test {
 protected:
  std::string File(const std::string& content) {
    std::ofstream(folder_ / "t.jsonl", std::ios::trunc) << content;
    return folder_ / "t.jsonl";
  }
  TempFolder folder_;
};

TEST_F(TraceFileTest, IdsAreDerivedFromFileAndLine) {
  const std::string named = Replaced("\"header\": {", "\"header\": {\"request\": {\"request_id\": \"run/7\"}, ");
  const std::string path = File(std::string(kSchema) + kLine + "\n \t\r\n" + named + "\n" + kLine);
  auto reader = TraceReader::Open(path);
  ASSERT_THAT(reader, IsOk());
  std::vector<std::string> ids;
  std::vector<int64_t> lines;
  while (true) {
    auto line = reader->Next();
    ASSERT_THAT(line, IsOk());
    if (!line->has_value()) break;
    ids.push_back((*line)->request.header.request().request_id());
    lines.push_back((*line)->line);
  }
  const std::string prefix = "trace-" + reader->digest().substr(0, 16) + "/";
  EXPECT_EQ(ids, (std::vector<std::string>{prefix + "2", "run/7", prefix + "5"}));
  EXPECT_EQ(lines, (std::vector<int64_t>{2, 4, 5}));
}

TEST_F(TraceFileTest, ABrokenLineIsNamedByItsNumber) {
  auto reader = TraceReader::Open(File(std::string(kSchema) + kLine + "\n" + Replaced("-0.3", "x") + "\n"));
  ASSERT_THAT(reader, IsOk());
  EXPECT_THAT(reader->Next(), IsOk());
  EXPECT_THAT(reader->Next(), Invalid("t.jsonl: line 3: not JSON"));
  reader = TraceReader::Open(
      File(kSchema + Replaced("\"header\": {", "\"header\": {\"request\": {\"request_id\": \"../x\"}, ")));
  EXPECT_THAT(reader->Next(), Invalid("line 2: header.request.request_id: \"../x\" is not a valid name"));
}

TEST_F(TraceFileTest, ALineThatIsTooLongIsPassedOverToItsEnd) {
  const size_t limit = std::string(kLine).size();
  const std::string too_long = Replaced("\"g0\"", "\"g00\"");
  auto reader = TraceReader::Open(
      File(std::string(kSchema) + too_long + "\n{]\n" + kLine + "\n" + too_long + too_long + "\n" + too_long), limit);
  ASSERT_THAT(reader, IsOk());
  const std::string problem =
      "bytes long, at most " + std::to_string(limit) + " are read: put fewer groups into a request";
  EXPECT_THAT(reader->Next(), Invalid("line 2: is " + std::to_string(limit + 1) + " " + problem));
  EXPECT_THAT(reader->Next(), Invalid("line 3: not JSON"));
  const auto line = reader->Next();
  ASSERT_THAT(line, IsOk());
  EXPECT_EQ((*line)->line, 4) << "a line of exactly the limit is read";
  EXPECT_THAT(reader->Next(), Invalid("line 5: is " + std::to_string(2 * limit + 2) + " " + problem));
  EXPECT_THAT(reader->Next(), Invalid("line 6: is " + std::to_string(limit + 1) + " " + problem));
  EXPECT_FALSE(reader->Next()->has_value());
}

// A file is read in pieces of 1 MiB: lines lie across the end of one, end with it, and begin behind it.
TEST_F(TraceFileTest, LinesAcrossPiecesAreWhole) {
  const size_t line_bytes = std::string(kLine).size();
  for (const size_t before : {(1 << 20) - line_bytes / 2, (1 << 20) - line_bytes - 1, size_t{1 << 20}}) {
    std::string content = kSchema;
    content += std::string(before - content.size() - 1, ' ') + "\n" + kLine + "\n" + kLine;
    auto reader = TraceReader::Open(File(content));
    ASSERT_THAT(reader, IsOk());
    for (const int64_t number : {3, 4}) {
      const auto line = reader->Next();
      ASSERT_THAT(line, IsOk()) << before;
      ASSERT_TRUE(line->has_value());
      EXPECT_EQ((*line)->line, number);
    }
    EXPECT_FALSE(reader->Next()->has_value());
  }
}

// In any order, across pieces of 1 MiB and behind blank lines; what is passed over is not parsed.
TEST_F(TraceFileTest, RequestsThatArePassedOverAreFoundAgain) {
  auto reader = TraceReader::Open(
      File(std::string(kSchema) + kLine + "\n{]\n" + std::string(1 << 20, ' ') + "\n \n" + kLine + "\n" + kLine));
  ASSERT_THAT(reader, IsOk());
  std::vector<TracePlace> places;
  while (true) {
    const auto place = reader->PassOver();
    ASSERT_THAT(place, IsOk());
    if (!place->has_value()) break;
    places.push_back(**place);
  }
  ASSERT_EQ(places.size(), 4u);
  const std::string prefix = "trace-" + reader->digest().substr(0, 16) + "/";
  for (const size_t index : {0u, 2u, 3u, 2u, 0u, 3u}) {
    reader->GoTo(places[index]);
    const auto line = reader->Next();
    ASSERT_THAT(line, IsOk()) << index;
    EXPECT_EQ(places[index].line, (std::vector<int64_t>{2, 3, 6, 7})[index]);
    EXPECT_EQ((*line)->line, places[index].line);
    EXPECT_EQ((*line)->request.header.request().request_id(), prefix + std::to_string((*line)->line));
  }
  reader->GoTo(places[1]);
  EXPECT_THAT(reader->Next(), Invalid("t.jsonl: line 3: not JSON"));
  EXPECT_EQ((*reader->Next())->line, 6);
}

TEST_F(TraceFileTest, AFileThatIsCutMeanwhileIsAnErrorOnce) {
  const std::string path = File(kSchema + std::string(1 << 20, ' ') + "\n" + kLine);
  auto reader = TraceReader::Open(path);
  ASSERT_THAT(reader, IsOk());
  std::filesystem::resize_file(path, 1 << 20);
  EXPECT_THAT(reader->Next(), Invalid("truncated"));
  EXPECT_FALSE(reader->Next()->has_value()) << "whoever reads on after an error comes to an end";
}

TEST_F(TraceFileTest, ALineThatNoReaderTakesIsNotWritten) {
  const auto request = ParseTraceRequest(kLine);
  const size_t length = FormatTraceRequest(*request, TraceArrays::kNumbers)->size();
  for (const size_t limit : {length - 1, length}) {
    const std::string path = folder_ / ("w" + std::to_string(limit));
    auto writer = TraceWriter::Create(path, TraceArrays::kNumbers, limit);
    ASSERT_THAT(writer, IsOk());
    const absl::Status written = writer->Write(*request);
    ASSERT_THAT(writer->Close(), IsOk());
    auto reader = TraceReader::Open(path, limit);
    ASSERT_THAT(reader, IsOk());
    EXPECT_EQ(written.ok(), limit == length) << written;
    EXPECT_EQ(reader->Next()->has_value(), written.ok()) << "nothing of a refused line is in the file";
    if (!written.ok()) {
      EXPECT_THAT(written, Invalid("a request's line is " + std::to_string(length) + " bytes long"));
    }
  }
}

TEST_F(TraceFileTest, TheFirstLineMustBeTheSchema) {
  EXPECT_THAT(TraceReader::Open(File("")), Invalid("is empty"));
  EXPECT_THAT(TraceReader::Open(File(kLine)), Invalid("line 1: the first line must be"));
  EXPECT_THAT(TraceReader::Open(File("{\"schema\": \"stemma.trace.v2\"}\n")), Invalid("schema is \"stemma.trace.v2\""));
  EXPECT_THAT(TraceReader::Open(File("{\"schema\": \"stemma.trace.v1\", \"arrays\": \"base64\"}\n")),
              Invalid("line 1: the first line must be"))
      << "what stands beside it may mean that this reader takes the lines for others";
  EXPECT_THAT(TraceReader::Open(folder_ / "none"),
              testing::StatusIs(absl::StatusCode::kNotFound, ::testing::HasSubstr("none")));
}

// Ids are made of the digest, so that two traces share none.
TEST_F(TraceFileTest, TheDigestIsOfTheWholeFile) {
  const std::string content = kSchema + std::string((1 << 20) + 100, ' ');
  for (const char end : {'\n', ' '}) {
    Sha256 sha;
    sha.Update(content + end);
    auto reader = TraceReader::Open(File(content + end));
    ASSERT_THAT(reader, IsOk());
    EXPECT_EQ(reader->digest(), sha.FinishHex());
  }
}

TEST_F(TraceFileTest, ErrorsNameThePathThatWasGiven) {
  File(std::string(kSchema) + "x\n");
  std::filesystem::create_symlink("t.jsonl", folder_ / "newest.jsonl");
  auto reader = TraceReader::Open(folder_ / "newest.jsonl");
  ASSERT_THAT(reader, IsOk());
  EXPECT_THAT(reader->Next(), Invalid("newest.jsonl: line 2: not JSON"));
}

TEST_F(TraceFileTest, AWrittenTraceReadsBack) {
  const auto request = ParseTraceRequest(kLine);
  const std::string path = folder_ / "w.jsonl";
  auto writer = TraceWriter::Create(path);
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT(writer->Write(*request), IsOk());
  ASSERT_THAT(writer->Close(), IsOk());
  EXPECT_EQ(TraceWriter::Create(path).status().code(), absl::StatusCode::kAlreadyExists);
  auto reader = TraceReader::Open(path);
  ASSERT_THAT(reader, IsOk());
  const auto line = reader->Next();
  ASSERT_THAT(line, IsOk());
  EXPECT_EQ((*line)->request.groups[0].SerializeAsString(), request->groups[0].SerializeAsString());
  EXPECT_FALSE(reader->Next()->has_value());
}

}  // namespace
}  // namespace stemma
