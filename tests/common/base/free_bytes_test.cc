#include "common/base/free_bytes.h"

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/disk_left.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

TEST(FreeBytesTest, AreThoseOfTheFileSystem) {
  const testing::TempFolder folder;
  const auto free_bytes = FreeBytes(folder.path());
  ASSERT_TRUE(free_bytes.has_value());
  const double expected = static_cast<double>(std::filesystem::space(folder.path()).available);
  EXPECT_NEAR(static_cast<double>(*free_bytes), expected, 0.05 * expected + (1 << 28)) << "others write too";
  EXPECT_FALSE(FreeBytes(folder / "none").has_value());
}

TEST(FreeBytesTest, AFullDiskHasNoneAndOneThatDoesNotSayIsNotFull) {
  const testing::FreeBytesGuard guard;
  testing::SetFreeBytes(0);
  EXPECT_EQ(FreeBytes("/"), 0u);
  testing::FailFreeBytes(EINTR);
  EXPECT_EQ(FreeBytes("/"), 0u) << "it is asked again";
  testing::FailFreeBytes(EIO);
  EXPECT_EQ(FreeBytes("/"), std::nullopt);
  const testing::DiskAnswers none(testing::DiskAnswer::kNoBlocks);
  EXPECT_EQ(FreeBytes("/"), std::nullopt);
}

}  // namespace
}  // namespace stemma
