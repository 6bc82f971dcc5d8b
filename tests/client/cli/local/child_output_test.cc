#include "client/cli/local/child_output.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ChildOutputTest, ReadsTheOutputAndHowTheChildEnded) {
  const auto output = ReadChild({"/bin/sh", "-c", "echo one; echo two; exit 3"});
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->text, "one\ntwo\n");
  EXPECT_EQ(output->wait_status, 3 << 8);
}

TEST(ChildOutputTest, AChildThatPrintsMoreThanIsTakenIsAnError) {
  const auto head = [](size_t bytes) { return ReadChild({"/usr/bin/head", "-c", absl::StrCat(bytes), "/dev/zero"}); };
  EXPECT_EQ(head(kChildOutputBytesMax)->text.size(), kChildOutputBytesMax);
  EXPECT_THAT(head(kChildOutputBytesMax + 1).status().message(),
              HasSubstr("/usr/bin/head printed more than the 67108864 bytes that are taken"));
}

TEST(ChildOutputTest, AReadThatFailsIsNotTooMuchOutput) {
  const std::string message(ReadPrinted(/*fd=*/-1, "stemma-server").status().message());
  EXPECT_THAT(message, AllOf(HasSubstr("read the output of stemma-server"), HasSubstr("Bad file descriptor"),
                             Not(HasSubstr("printed more"))));
}

}  // namespace
}  // namespace stemma::cli
