#include "client/cli/commands/expected.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kText[] =
    "{\"schema\": \"stemma.expected.v1\", \"loss\": {\"absolute\": 1e-3}, \"grad_norm\": {\"relative\": 0.1}}\n"
    "{\"line\": 2, \"loss\": 0.5, \"grad_norm\": 2.0, \"tokens_saved\": 7}\n"
    "{\"line\": 2, \"k\": 1, \"loss\": -0.5, \"grad_norm\": 2.0}\n";

TEST(ExpectedStepsTest, ValuesWithinTheirToleranceAreAsExpected) {
  const auto expected = ExpectedSteps::Parse(kText);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(expected->size(), 2u);
  EXPECT_EQ(expected->Compare(2, 0, 0.5009, 2.19), "");
  EXPECT_EQ(expected->Compare(2, 1, -0.5009, 1.81), "");
}

TEST(ExpectedStepsTest, AValueBeyondItsToleranceIsNamed) {
  const auto expected = ExpectedSteps::Parse(kText);
  ASSERT_TRUE(expected.ok());
  EXPECT_THAT(expected->Compare(2, 0, 0.502, 2.0), HasSubstr("line 2 step 0: loss is 0.502, expected 0.5"));
  EXPECT_THAT(expected->Compare(2, 0, 0.5, 2.21), HasSubstr("grad_norm is 2.21"));
}

TEST(ExpectedStepsTest, NanIsNeverAsExpected) {
  const auto expected = ExpectedSteps::Parse(kText);
  ASSERT_TRUE(expected.ok());
  EXPECT_NE(expected->Compare(2, 0, std::numeric_limits<double>::quiet_NaN(), 2.0), "");
}

TEST(ExpectedStepsTest, AStepThatTheFileLacksIsADifference) {
  const auto expected = ExpectedSteps::Parse(kText);
  ASSERT_TRUE(expected.ok());
  EXPECT_THAT(expected->Compare(3, 0, 0.5, 2.0), HasSubstr("nothing is expected"));
}

TEST(ExpectedStepsTest, StepsThatDidNotComeAreNamed) {
  const auto expected = ExpectedSteps::Parse(std::string(kText) + "{\"line\": 4, \"loss\": 0, \"grad_norm\": 0}\n");
  ASSERT_TRUE(expected.ok());
  EXPECT_THAT(expected->Missing(2, 0), ElementsAre("line 2 step 0: did not come", "line 2 step 1: did not come"));
  EXPECT_THAT(expected->Missing(2, 1), ElementsAre("line 2 step 1: did not come"));
  EXPECT_THAT(expected->Missing(2, 2), ElementsAre());
  EXPECT_THAT(expected->Missing(3, 0), ElementsAre()) << "nothing is expected of that line";
}

TEST(ExpectedStepsTest, ABrokenLineIsNamed) {
  const std::string header = "{\"schema\": \"stemma.expected.v1\"}\n";
  EXPECT_THAT(std::string(ExpectedSteps::Parse(header + "{\"line\": 2, \"loss\": 1}\n").status().message()),
              HasSubstr("line 2: grad_norm"));
  EXPECT_THAT(std::string(ExpectedSteps::Parse(header + "{]").status().message()), HasSubstr("line 2"));
  EXPECT_FALSE(ExpectedSteps::Parse("{\"schema\": \"other\"}\n").ok());
  for (const char* none : {"{\"line\": 2, \"k\": 0, \"loss\": 1, \"grad_norm\": 1}\n", "{\n", "loss\n"}) {
    EXPECT_THAT(std::string(ExpectedSteps::Parse(none).status().message()),
                HasSubstr("line 1: is no header: put {\"schema\": \"stemma.expected.v1\""))
        << none;
  }
  EXPECT_FALSE(ExpectedSteps::Parse(header).ok());
  EXPECT_FALSE(ExpectedSteps::Parse("").ok());
}

}  // namespace
}  // namespace stemma::cli
