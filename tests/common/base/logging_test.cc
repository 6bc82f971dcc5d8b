#include "common/base/logging.h"

#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace stemma {
namespace {

const absl::Time kTime = absl::FromUnixMillis(1'769'847'330'007);

TEST(LoggingTest, ALineOfWordsHasTimeLevelAndText) {
  EXPECT_EQ(LogLine(LogFormat::kText, kTime, LogLevel::kInfo, "p", "worker is ready"),
            "2026-01-31T08:15:30.007Z INFO worker is ready");
  EXPECT_EQ(LogLine(LogFormat::kText, kTime, LogLevel::kError, "p", "two\nlines"),
            "2026-01-31T08:15:30.007Z ERROR two lines");
}

TEST(LoggingTest, ALineOfOneOfSeveralRanksSaysWhich) {
  const auto line = [](LogFormat format, std::optional<uint32_t> rank) {
    return LogLine(format, kTime, LogLevel::kInfo, "p", "is ready", rank);
  };
  EXPECT_EQ(line(LogFormat::kText, 0), "2026-01-31T08:15:30.007Z INFO rank 0: is ready");
  EXPECT_EQ(nlohmann::json::parse(line(LogFormat::kJson, 3))["rank"], 3);
  EXPECT_FALSE(nlohmann::json::parse(line(LogFormat::kJson, std::nullopt)).contains("rank"));
}

TEST(LoggingTest, ALineOfWordsCommandsNoTerminal) {
  const auto line = [](const std::string& text) {
    return LogLine(LogFormat::kText, kTime, LogLevel::kInfo, "p", text).substr(30);
  };
  EXPECT_EQ(line("a\x1b[2Jb\rc\td\x7f"), "a\\x1b[2Jb\\x0dc\\x09d\\x7f");
  EXPECT_EQ(line(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(line("a\xc2\x9b"
                 "2J\xc2\x80\xc2\x9f"),
            "a\\u009b2J\\u0080\\u009f");
  EXPECT_EQ(line("\xc2\xa0\xc3\x9f\xe2\x82\xac\xc2"), "\xc2\xa0\xc3\x9f\xe2\x82\xac\xc2") << "letters stay";
}

TEST(LoggingTest, AJsonLineIsOneObjectWhateverTheText) {
  for (const std::string& text : {std::string("a \"b\"\n\\c"), std::string("\xff\xfe", 2), std::string("\0x", 2)}) {
    const std::string line = LogLine(LogFormat::kJson, kTime, LogLevel::kWarning, "stemma-server", text);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    const nlohmann::json json = nlohmann::json::parse(line);
    EXPECT_EQ(json["time"], "2026-01-31T08:15:30.007Z");
    EXPECT_EQ(json["level"], "warning");
    EXPECT_EQ(json["program"], "stemma-server");
    EXPECT_EQ(json["pid"], getpid());
  }
  EXPECT_EQ(nlohmann::json::parse(LogLine(LogFormat::kJson, kTime, LogLevel::kInfo, "p", "a\n\"b\""))["message"],
            "a\n\"b\"");
}

}  // namespace
}  // namespace stemma
