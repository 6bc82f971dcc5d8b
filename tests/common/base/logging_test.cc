#include "common/base/logging.h"

#include <unistd.h>

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
