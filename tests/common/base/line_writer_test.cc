// A log whose reader stops, or goes away, never stops its writer.
#include "common/base/line_writer.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/process.h"
#include "common/base/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"

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

  // Reads what is there.
  std::string Read() {
    fcntl(fds_[0], F_SETFL, O_NONBLOCK);
    std::string text;
    char buffer[4096];
    for (ssize_t count; (count = read(fds_[0], buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(count));
    return text;
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
  std::string text = Read();
  const size_t whole = text.size() / kLineBytes;
  const bool is_cut = text.size() % kLineBytes > 0;
  ASSERT_GT(whole, 100u);
  writer.Write("again\n", Told);
  writer.Write("and again\n", Told);
  text += Read();
  std::string expected;
  const size_t got = whole + (is_cut ? 1 : 0);  // a line that was cut has its rest before all that follows
  for (size_t i = 0; i < got; ++i) expected += Line(static_cast<int>(i));
  EXPECT_EQ(text, absl::StrCat(expected, kLines - got, " dropped\nagain\nand again\n"));
}

// A log file on a disk that fills up: a write that crosses the limit of a FileSizeLimit is cut short.
class LineWriterFileTest : public ::testing::Test {
 protected:
  std::string Text() const { return ReadFile(path_, 1 << 20).value(); }
  static std::string Number(int i) { return absl::StrCat("line ", i, "\n"); }

  const testing::TempFolder folder_;
  const std::string path_ = folder_ / "log";
  const UniqueFd fd_ = UniqueFd(open(path_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  LineWriter writer_ = LineWriter(fd_.get());
};

class RoomTest : public LineWriterFileTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Bytes, RoomTest, ::testing::Range(0, 22));

TEST_P(RoomTest, AFullDiskCutsNoLine) {
  constexpr int kRoomAgain = 5, kLines = 7;
  const int got = (GetParam() + 6) / 7;  // lines, of 7 bytes each, whose first byte finds room
  {
    const testing::FileSizeLimit limit(static_cast<rlim_t>(GetParam()));
    for (int i = 0; i < kRoomAgain; ++i) EXPECT_EQ(writer_.Write(Number(i), Told), 7 * (i + 1) <= GetParam());
  }
  for (int i = kRoomAgain; i < kLines; ++i) EXPECT_TRUE(writer_.Write(Number(i), Told));
  std::string expected;
  for (int i = 0; i < got; ++i) expected += Number(i);
  expected += Told(kRoomAgain - got);
  for (int i = kRoomAgain; i < kLines; ++i) expected += Number(i);
  EXPECT_EQ(Text(), expected);
}

// Room that comes back may also end inside the line that tells of the dropped ones.
TEST_F(LineWriterFileTest, ALittleRoomAtATimeCutsNoLineAndTellsOfEachDroppedOneOnce) {
  constexpr int kLines = 400;
  for (int i = 0; i < kLines; ++i) {
    const testing::FileSizeLimit limit(static_cast<rlim_t>(2 * i));
    writer_.Write(Number(i), Told);
  }
  EXPECT_TRUE(writer_.Write("last\n", Told));
  int next = 0, told = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(Text(), '\n', absl::SkipEmpty()))) {
    int dropped = 0;
    if (absl::SimpleAtoi(line.substr(0, line.find(' ')), &dropped)) {
      EXPECT_EQ(line + "\n", Told(dropped));
      next += dropped;
      ++told;
    } else if (next < kLines) {
      EXPECT_EQ(line + "\n", Number(next++));
    } else {
      EXPECT_EQ(line, "last");
    }
  }
  EXPECT_EQ(next, kLines);
  EXPECT_GT(told, 10);
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
