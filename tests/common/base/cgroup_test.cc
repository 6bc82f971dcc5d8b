// What the groups around a process leave it, read from folders that look like theirs.
#include "common/base/cgroup.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() { std::filesystem::create_directories(folders_.front()); }
  // `around`: how many groups lie between the process's own and this one.
  void Write(size_t around, const std::string& file, const std::string& text) const {
    std::ofstream(folders_.at(around) + "/" + file) << text;
  }
  std::optional<int64_t> Limit() const { return CgroupLimitBytes(folders_); }
  std::optional<int64_t> Left() const { return CgroupLeftBytes(folders_); }
  std::optional<int64_t> Cores() const { return CgroupCores(folders_); }

  const testing::TempFolder root_;
  const std::vector<std::string> folders_ = CgroupFoldersOf(root_.path(), "0::/job/step\n");
};

TEST_F(CgroupTest, TheFoldersLeadFromTheOwnGroupToTheRoot) {
  EXPECT_THAT(folders_, ElementsAre(root_ / "job/step", root_ / "job", root_.path()));
  EXPECT_THAT(CgroupFoldersOf("/r", "0::/"), ElementsAre("/r")) << "in a namespace of its own";
  EXPECT_THAT(CgroupFoldersOf("/r", "12:cpu:/a\n1:name=systemd:/b\n0::/c\n"), ElementsAre("/r/c", "/r"))
      << "the line of v2 is the last one beside v1";
  EXPECT_THAT(CgroupFoldersOf("/r", "4:memory:/a\n10::/b\n"), IsEmpty());
  EXPECT_THAT(CgroupFoldersOf("/r", ""), IsEmpty());
}

TEST_F(CgroupTest, FilesThatWereReadCountAsLeft) {
  Write(0, "memory.max", "1000\n");
  Write(0, "memory.current", "900\n");
  EXPECT_EQ(Left(), 100) << "nothing is known of its pages";
  Write(0, "memory.stat", "anon 250\nfile 640\ninactive_anon 1\ninactive_file 600\nactive_file 40\n");
  EXPECT_EQ(Left(), 740) << "also those that were read twice";
  EXPECT_EQ(Limit(), 1000);
}

TEST_F(CgroupTest, NoMoreIsLeftThanTheLimitAndNoLessThanNothing) {
  Write(0, "memory.max", "1000\n");
  Write(0, "memory.current", "500\n");
  Write(0, "memory.stat", "inactive_file 800\n");
  EXPECT_EQ(Left(), 1000);
  Write(0, "memory.stat", "inactive_file 0\n");
  Write(0, "memory.current", "1100\n");
  EXPECT_EQ(Left(), 0);
}

TEST_F(CgroupTest, TheGroupThatDecidesIsTheOutermostOfEqualOnes) {
  EXPECT_EQ(CgroupOfLeftBytes(folders_), "");
  EXPECT_EQ(CgroupOfCores(folders_), "");
  Write(0, "memory.max", "1000\n");
  Write(0, "memory.current", "100\n");
  EXPECT_EQ(CgroupOfLeftBytes(folders_), folders_[0]);
  Write(1, "memory.max", "2000\n");
  Write(1, "memory.current", "1500\n");  // others of the job use more
  EXPECT_EQ(CgroupOfLeftBytes(folders_), folders_[1]);
  Write(1, "memory.current", "100\n");
  EXPECT_EQ(CgroupOfLeftBytes(folders_), folders_[0]);
  Write(1, "memory.max", "1000\n");
  EXPECT_EQ(CgroupOfLeftBytes(folders_), folders_[1]) << "all that is below it has no more";
  Write(0, "cpu.max", "200000 100000\n");
  Write(2, "cpu.max", "150000 100000\n");
  EXPECT_EQ(CgroupOfCores(folders_), folders_[2]) << "both are worth two cores";
}

TEST_F(CgroupTest, WithoutALimitOrItsFilesNothingIsKnown) {
  EXPECT_EQ(Left(), std::nullopt);
  Write(0, "memory.max", "max\n");
  Write(0, "memory.high", "max\n");
  Write(0, "memory.current", "500\n");
  EXPECT_EQ(Left(), std::nullopt);
  EXPECT_EQ(Limit(), std::nullopt);
  EXPECT_EQ(CgroupLimitBytes({}), std::nullopt);
  Write(0, "memory.max", "1000\n");
  std::filesystem::remove(folders_.front() + "/memory.current");
  EXPECT_EQ(Left(), std::nullopt);
}

TEST_F(CgroupTest, AGroupAroundTheOwnOneLimitsItToo) {
  Write(0, "memory.max", "max\n");
  Write(0, "memory.current", "100\n");
  Write(1, "memory.max", "1000\n");
  Write(1, "memory.current", "400\n");
  EXPECT_EQ(Limit(), 1000);
  EXPECT_EQ(Left(), 600);
  Write(0, "memory.max", "900\n");
  EXPECT_EQ(Limit(), 900) << "the least limit";
  EXPECT_EQ(Left(), 600) << "and the least that is left, which is another's";
  Write(2, "memory.max", "800\n");
  Write(2, "memory.current", "790\n");
  EXPECT_EQ(Limit(), 800);
  EXPECT_EQ(Left(), 10);
}

TEST_F(CgroupTest, WhatIsHeldUpAboveAMarkHasNoMore) {
  Write(0, "memory.max", "1000\n");
  Write(0, "memory.high", "700\n");
  Write(0, "memory.current", "400\n");
  EXPECT_EQ(Limit(), 700);
  EXPECT_EQ(Left(), 300);
}

TEST_F(CgroupTest, APartOfACoreIsAWholeOne) {
  EXPECT_EQ(Cores(), std::nullopt);
  for (const auto& [text, cores] :
       {std::pair("200000 100000", 2), {"250000 100000", 3}, {"50000 100000", 1}, {"1 100000", 1}}) {
    Write(0, "cpu.max", std::string(text) + "\n");
    EXPECT_EQ(Cores(), cores) << text;
  }
  for (const char* text : {"max 100000", "", "0 100000", "-1 100000", "100000", "100000 0"}) {
    Write(0, "cpu.max", text);
    EXPECT_EQ(Cores(), std::nullopt) << text;
  }
  Write(0, "cpu.max", "800000 100000\n");
  Write(1, "cpu.max", "300000 100000\n");
  EXPECT_EQ(Cores(), 3) << "the group around it has fewer";
}

}  // namespace
}  // namespace stemma
