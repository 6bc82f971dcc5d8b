// What this machine says of its memory.
#include "common/base/system_memory.h"

#include <fstream>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

TEST(SystemMemoryTest, AMachineHasMoreThanItHasFree) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_GE(MachineMemoryBytes(), AvailableMemoryBytes());
}

// 0 would say that it is not known, and a worker on a GPU would be taken for one that shares the host's memory.
TEST(SystemMemoryTest, AGroupAboveItsMarkHasNextToNothingLeft) {
  const testing::TempFolder folder;
  const std::vector<std::string> folders = {folder.path()};
  const int64_t without_limit = AvailableMemoryBytesIn(folders);
  EXPECT_GT(without_limit, 1);
  EXPECT_EQ(AvailableMemoryGroupIn(folders), "") << "it is the machine's";
  std::ofstream(folder / "memory.high") << "1000\n";
  std::ofstream(folder / "memory.current") << "400\n";
  EXPECT_EQ(AvailableMemoryBytesIn(folders), 600);
  EXPECT_EQ(AvailableMemoryGroupIn(folders), folder.path());
  std::ofstream(folder / "memory.current") << "1100\n";
  EXPECT_EQ(AvailableMemoryBytesIn(folders), 1);
}

}  // namespace
}  // namespace stemma
