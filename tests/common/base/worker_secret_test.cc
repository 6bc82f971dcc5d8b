#include "common/base/worker_secret.h"

#include <sys/stat.h>

#include <set>
#include <string>

#include "common/base/file.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using testing::Invalid;
using testing::IsOk;

class WorkerSecretTest : public ::testing::Test {
 protected:
  testing::TempFolder folder_;
  const std::string path_ = folder_ / "secret";
};

TEST_F(WorkerSecretTest, EachNewOneIs64HexDigitsOfItsOwn) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(NewWorkerSecret());
  EXPECT_EQ(seen.size(), 100u);
  for (const std::string& secret : seen) {
    EXPECT_EQ(secret.size(), 64u);
    EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_THAT(CheckWorkerSecret(secret), IsOk());
  }
}

TEST_F(WorkerSecretTest, WhatIsWrittenIsReadAndOnlyTheOwnerCan) {
  const std::string secret = NewWorkerSecret();
  ASSERT_THAT(WriteWorkerSecret(path_, secret), IsOk());
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  const absl::StatusOr<std::string> read = ReadWorkerSecret(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, secret);
  EXPECT_TRUE(absl::IsAlreadyExists(WriteWorkerSecret(path_, secret)));
}

TEST_F(WorkerSecretTest, AFileThatOthersCanUseIsRefusedWithoutItsText) {
  const std::string secret = NewWorkerSecret();
  ASSERT_THAT(WriteWorkerSecret(path_, secret), IsOk());
  for (const mode_t mode : {0640u, 0604u, 0620u, 0602u, 0610u, 0601u, 0666u}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    const absl::Status status = ReadWorkerSecret(path_).status();
    EXPECT_THAT(status, Invalid("chmod 600"));
    EXPECT_EQ(status.message().find(secret), std::string::npos);
  }
  ASSERT_EQ(chmod(path_.c_str(), 0400), 0);
  EXPECT_TRUE(ReadWorkerSecret(path_).ok());
}

TEST_F(WorkerSecretTest, WhatIsNoSecretIsRefused) {
  for (const std::string& text : {std::string(), std::string(31, 'a'), std::string(257, 'a'),
                                  std::string(31, 'a') + " b", std::string(40, '\x01')}) {
    EXPECT_THAT(CheckWorkerSecret(text), Invalid("32 to 256 printable characters"));
  }
  EXPECT_THAT(CheckWorkerSecret(std::string(32, 'a')), IsOk());
  EXPECT_THAT(CheckWorkerSecret(std::string(256, 'a')), IsOk());
  EXPECT_TRUE(absl::IsNotFound(ReadWorkerSecret(path_).status()));
}

TEST_F(WorkerSecretTest, LineEndsBehindItAreNoPartOfIt) {
  const std::string secret = NewWorkerSecret();
  for (const char* end : {"", "\n", "\r\n", "\n\n"}) {
    const absl::StatusOr<std::string> read = WorkerSecretOf(secret + end);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, secret);
  }
  for (const std::string& text : {"\n" + secret, secret + "\n" + secret, secret + " ", std::string(40, '\n')}) {
    EXPECT_THAT(WorkerSecretOf(text).status(), Invalid("32 to 256 printable characters"));
  }
}

TEST_F(WorkerSecretTest, SameMeansEveryCharacterAndTheLength) {
  const std::string secret = NewWorkerSecret();
  EXPECT_TRUE(SameSecret(secret, std::string(secret)));
  EXPECT_FALSE(SameSecret(secret, secret.substr(1)));
  EXPECT_FALSE(SameSecret(secret, secret + "0"));
  EXPECT_FALSE(SameSecret(secret, ""));
  for (size_t i = 0; i < secret.size(); ++i) {
    std::string other = secret;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(SameSecret(secret, other)) << i;
  }
}

}  // namespace
}  // namespace stemma
