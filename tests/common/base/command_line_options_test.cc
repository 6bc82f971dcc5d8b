#include "common/base/command_line_options.h"

#include "CLI/CLI.hpp"
#include "common/base/option_checks.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

TEST(OptionChecksTest, OnlyTheWordsPass) {
  const OptionCheck check = OneOf({"table", "json"});
  EXPECT_EQ(check("json"), "");
  EXPECT_EQ(check("yaml"), "\"yaml\" is not one of table, json");
  EXPECT_EQ(check("1"), "\"1\" is not one of table, json");
  EXPECT_EQ(check(""), "\"\" is not one of table, json");
}

TEST(OptionChecksTest, WholeNumbersPassFromTheFirstToTheLast) {
  const OptionCheck check = Whole(2, 4096);
  EXPECT_EQ(check("2"), "");
  EXPECT_EQ(check("4096"), "");
  for (const char* text : {"1", "4097", "-2", "+2", "2.0", "2e1", "0x2", " 2", "", "99999999999999999999"}) {
    EXPECT_EQ(check(text), std::string("\"") + text + "\" is not a whole number from 2 to 4096");
  }
  EXPECT_EQ(Whole(0, UINT64_MAX)("18446744073709551615"), "");
  EXPECT_NE(Whole(0, UINT64_MAX)("18446744073709551616"), "");
}

TEST(OptionChecksTest, AWordIsStoredAsWhatItStandsFor) {
  int value = 7;
  CLI::App app;
  AddWord<int>(&app, "-o,--output", value, {{"table", 0}, {"json", 1}}, "What to print");
  app.parse("-o json");
  EXPECT_EQ(value, 1);
  EXPECT_THROW(app.parse("-o 0"), CLI::ValidationError);
  EXPECT_EQ(value, 1);
}

TEST(LogOptionsTest, WordsAreTakenAndNothingElse) {
  LogOptions options;
  CLI::App app;
  AddLogOptions(&app, options);
  app.parse("--log-level error --log-format json");
  EXPECT_EQ(options.level, LogLevel::kError);
  EXPECT_EQ(options.format, LogFormat::kJson);
  for (const char* wrong : {"--log-level 3", "--log-level ERROR", "--log-format 1", "--log-format xml"}) {
    EXPECT_THROW(app.parse(wrong), CLI::ValidationError) << wrong;
  }
}

}  // namespace
}  // namespace stemma
