// What a container leaves, read from a folder that looks like a cgroup's.
#include "common/base/system_memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace stemma {
namespace {

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() {
    std::string name = std::filesystem::temp_directory_path() / "stemma-cgroup-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~CgroupTest() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& file, const std::string& text) const { std::ofstream(folder_ + "/" + file) << text; }

  std::string folder_;
};

TEST_F(CgroupTest, FilesThatWereReadAndAreNotUsedCountAsLeft) {
  Write("memory.max", "1000\n");
  Write("memory.current", "900\n");
  EXPECT_EQ(CgroupLeftBytes(folder_), 100) << "nothing is known of its pages";
  Write("memory.stat", "anon 250\nfile 640\ninactive_anon 1\ninactive_file 600\nactive_file 40\n");
  EXPECT_EQ(CgroupLeftBytes(folder_), 700);
  EXPECT_EQ(CgroupLimitBytes(folder_), 1000);
}

TEST_F(CgroupTest, NoMoreIsLeftThanTheLimitAndNoLessThanNothing) {
  Write("memory.max", "1000\n");
  Write("memory.current", "500\n");
  Write("memory.stat", "inactive_file 800\n");
  EXPECT_EQ(CgroupLeftBytes(folder_), 1000);
  Write("memory.stat", "inactive_file 0\n");
  Write("memory.current", "1100\n");
  EXPECT_EQ(CgroupLeftBytes(folder_), 0);
}

TEST_F(CgroupTest, WithoutALimitOrItsFilesNothingIsKnown) {
  EXPECT_EQ(CgroupLeftBytes(folder_), std::nullopt);
  Write("memory.max", "max\n");
  Write("memory.current", "500\n");
  EXPECT_EQ(CgroupLeftBytes(folder_), std::nullopt);
  EXPECT_EQ(CgroupLimitBytes(folder_), std::nullopt);
  EXPECT_EQ(CgroupLimitBytes(""), std::nullopt);
  Write("memory.max", "1000\n");
  std::filesystem::remove(folder_ + "/memory.current");
  EXPECT_EQ(CgroupLeftBytes(folder_), std::nullopt);
}

TEST(SystemMemoryTest, AMachineHasMoreThanItHasFree) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_GE(MachineMemoryBytes(), AvailableMemoryBytes());
}

}  // namespace
}  // namespace stemma
