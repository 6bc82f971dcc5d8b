#include "common/base/open_ssl.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <unistd.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace stemma {
namespace {

constexpr int kUsable = 0, kFreed = 7;

// Leaves with what a thread that is still there when exit() runs its handlers would find.
[[noreturn]] void UseAtExit(bool keep) {
  std::atexit([] { _exit(OPENSSL_init_crypto(0, nullptr) == 1 ? kUsable : kFreed); });  // runs behind OpenSSL's own
  if (keep) KeepOpenSslAtExit();
  unsigned char byte = 0;
  RAND_bytes(&byte, 1);
  std::exit(kFreed);
}

TEST(OpenSslTest, IsThereUntilTheProcessHasEnded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(UseAtExit(/*keep=*/true), testing::ExitedWithCode(kUsable), "");
  EXPECT_EXIT(UseAtExit(/*keep=*/false), testing::ExitedWithCode(kFreed), "") << "the control: OpenSSL frees by itself";
}

}  // namespace
}  // namespace stemma
