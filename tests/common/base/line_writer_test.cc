// A log whose reader stops, or goes away, never stops its writer.
#include "common/base/line_writer.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/process.h"
#include "gtest/gtest.h"

namespace stemma {
namespace {

constexpr size_t kLineBytes = 200;

std::string Line(int number) {
  std::string line = absl::StrCat("line ", number, " ");
  line.resize(kLineBytes - 1, '.');
  return line + "\n";
}

std::string Told(int64_t lines) { return absl::StrCat(lines, " dropped\n"); }

// Two connected descriptors: what is written to the second is read from the first.
class LineWriterTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    IgnorePipeSignal();
    ASSERT_EQ(GetParam() ? socketpair(AF_UNIX, SOCK_STREAM, 0, fds_) : pipe(fds_), 0);
  }
  void TearDown() override {
    close(fds_[0]);
    close(fds_[1]);
  }

  // Reads what is there, by lines.
  std::vector<std::string> ReadLines() {
    fcntl(fds_[0], F_SETFL, O_NONBLOCK);
    std::string text;
    char buffer[4096];
    for (ssize_t count; (count = read(fds_[0], buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(count));
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }

  int fds_[2] = {-1, -1};
};

INSTANTIATE_TEST_SUITE_P(Kinds, LineWriterTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Socket" : "Pipe"; });

TEST_P(LineWriterTest, AReaderThatStopsCostsOneWaitAndIsToldWhatItMissed) {
  constexpr int kLines = 20'000;  // more than any buffer of a pipe or socket holds
  LineWriter writer(fds_[1]);
  const double begin_s = RealClock().MonotonicSeconds();
  for (int i = 0; i < kLines; ++i) writer.Write(Line(i), Told);
  // One wait of 0.1 s; the rest is slack of a busy machine. A writer that waited for each line would take half an hour.
  EXPECT_LT(RealClock().MonotonicSeconds() - begin_s, 60);
  const std::vector<std::string> before = ReadLines();
  ASSERT_GT(before.size(), 100u);
  for (size_t i = 0; i + 1 < before.size(); ++i) EXPECT_EQ(before[i] + "\n", Line(static_cast<int>(i)));
  writer.Write("again\n", Told);
  writer.Write("and again\n", Told);
  std::vector<std::string> after = ReadLines();
  ASSERT_GE(after.size(), 3u);
  const auto whole = static_cast<int64_t>(before.back().size() == kLineBytes - 1 ? before.size() : before.size() - 1);
  // A line that was cut ends with what follows it.
  EXPECT_TRUE(after[after.size() - 3].ends_with(absl::StrCat(kLines - whole, " dropped"))) << after[0];
  EXPECT_EQ(after[after.size() - 2], "again");
  EXPECT_EQ(after.back(), "and again");
}

TEST_P(LineWriterTest, AReaderThatGoesAwayEndsNothing) {
  LineWriter writer(fds_[1]);
  close(fds_[0]);
  fds_[0] = -1;
  for (int i = 0; i < 3; ++i) writer.Write(Line(i), Told);
}

TEST_P(LineWriterTest, WhatOthersShareStaysADescriptorThatWaits) {
  const LineWriter writer(fds_[1]);
  EXPECT_EQ(fcntl(fds_[1], F_GETFL) & O_NONBLOCK, 0);
}

}  // namespace
}  // namespace stemma
