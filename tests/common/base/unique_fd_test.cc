#include "common/base/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "gtest/gtest.h"

namespace stemma {
namespace {

int OpenNull() {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(fd, 0);
  return fd;
}

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, ItsEndClosesIt) {
  const int fd = OpenNull();
  {
    const UniqueFd owner(fd);
    EXPECT_TRUE(owner.valid());
    EXPECT_EQ(owner.get(), fd);
    EXPECT_TRUE(IsOpen(fd));
  }
  EXPECT_FALSE(IsOpen(fd));
}

TEST(UniqueFdTest, StandardInputIsADescriptorToo) {
  EXPECT_FALSE(UniqueFd().valid());
  EXPECT_FALSE(UniqueFd(-1).valid());
  UniqueFd owner(0);
  EXPECT_TRUE(owner.valid());
  EXPECT_EQ(owner.Release(), 0);
}

TEST(UniqueFdTest, WhatIsMovedHasOneOwner) {
  const int first = OpenNull(), second = OpenNull();
  UniqueFd owner(first);
  {
    UniqueFd taken = std::move(owner);
    EXPECT_EQ(taken.get(), first);
    EXPECT_FALSE(owner.valid());
    owner = std::move(taken);
  }
  EXPECT_TRUE(IsOpen(first)) << "who gave it away does not close it";
  owner = UniqueFd(second);
  EXPECT_FALSE(IsOpen(first)) << "who takes another one closes its own";
  EXPECT_TRUE(IsOpen(second));
  UniqueFd& same = owner;
  owner = std::move(same);
  EXPECT_EQ(owner.get(), second);
  EXPECT_TRUE(IsOpen(second));
}

TEST(UniqueFdTest, WhatIsReleasedStaysOpen) {
  UniqueFd owner(OpenNull());
  const int fd = owner.Release();
  EXPECT_FALSE(owner.valid());
  owner.Reset();
  EXPECT_TRUE(IsOpen(fd));
  EXPECT_EQ(close(fd), 0);
}

TEST(UniqueFdTest, ResetClosesTheOldOne) {
  const int first = OpenNull(), second = OpenNull();
  UniqueFd owner(first);
  owner.Reset(second);
  EXPECT_FALSE(IsOpen(first));
  EXPECT_EQ(owner.get(), second);
  owner.Reset();
  EXPECT_FALSE(IsOpen(second));
  EXPECT_FALSE(owner.valid());
}

TEST(UniqueFdTest, AFailureCanBeToldAfterTheEnd) {
  {
    UniqueFd owner(OpenNull());
    EXPECT_EQ(close(owner.get()), 0);  // so that closing it fails and sets errno
    errno = ENOSPC;
  }
  EXPECT_EQ(errno, ENOSPC);
}

}  // namespace
}  // namespace stemma
