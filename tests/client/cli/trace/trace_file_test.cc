#include "client/cli/trace/trace_file.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma::cli {
namespace {

using stemma::testing::IsOk;
using stemma::testing::TempFolder;

std::string Line(const std::string& uid) {
  return R"({"header": {"loss": {"loss_mode": "gpg"}}, "groups": [{"uid": ")" + uid + R"(", "prompt_tokens": [5]}]})";
}

class TraceFileTest : public ::testing::Test {
 protected:
  std::string File(const std::string& lines) {
    const std::string path = folder_ / "t.jsonl";
    std::ofstream(path) << "{\"schema\": \"stemma.trace.v1\"}\n" << lines;
    return path;
  }
  TempFolder folder_;
};

// The blank line, which is no request, is longer still.
TEST_F(TraceFileTest, ALineThatIsTooLongIsNoMistakeOfTheOthers) {
  const size_t limit = Line("a").size();
  auto trace = TraceFile::Open(
      File(Line("a") + "\n" + Line("bb") + "\n" + std::string(2 * limit, ' ') + "\n" + Line("c")), limit);
  ASSERT_THAT(trace, IsOk());
  ASSERT_EQ(trace->num_requests(), 3);
  EXPECT_EQ(trace->Read(0)->request.groups[0].uid(), "a");
  const std::string problem(trace->Read(1).status().message());
  EXPECT_NE(problem.find("t.jsonl: line 3: is " + std::to_string(limit + 1) + " bytes long"), problem.npos) << problem;
  EXPECT_EQ(*trace->IndexOfLine(5), 2);
  EXPECT_EQ(trace->Read(2)->request.groups[0].uid(), "c");
  EXPECT_THAT(trace->Check(2, 3), IsOk());
  EXPECT_FALSE(trace->Check(0, 3).ok());
}

}  // namespace
}  // namespace stemma::cli
