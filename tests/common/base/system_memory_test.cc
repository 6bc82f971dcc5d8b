// What this machine says of its memory.
#include "common/base/system_memory.h"

#include "gtest/gtest.h"

namespace stemma {
namespace {

TEST(SystemMemoryTest, AMachineHasMoreThanItHasFree) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_GE(MachineMemoryBytes(), AvailableMemoryBytes());
}

}  // namespace
}  // namespace stemma
