#include "common/base/names.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using testing::Invalid;
using testing::IsOk;

TEST(NamesTest, RequestIdsMayHoldSlashesFileNamesMayNot) {
  EXPECT_THAT(CheckRequestId("run/121"), IsOk());
  EXPECT_THAT(CheckRequestId("a"), IsOk());
  EXPECT_THAT(CheckRequestId("0._/-Z"), IsOk());
  EXPECT_THAT(CheckFileName("model-00001-of-00002.safetensors"), IsOk());
  EXPECT_THAT(CheckFileName("run/121"), Invalid("not a valid name"));
  for (const char* name : {"a", ".tmp-export-1-2"}) EXPECT_THAT(CheckFolderName(name), IsOk()) << name;
  for (const char* name : {"", ".", "..", "..a", ".a/b", "./a"}) {
    EXPECT_THAT(CheckFolderName(name), Invalid("not a valid name")) << name;
  }
}

TEST(NamesTest, EscapesAndOddCharactersAreRefused) {
  for (const std::string name :
       {"", ".", "..", "a..b", "a/../b", "/etc", "-a", "_a", "a b", "a\\b", "a\n", "\xc3\xa4", "a:b", "~"}) {
    EXPECT_THAT(CheckRequestId(name), Invalid("not a valid name")) << name;
    EXPECT_THAT(CheckFileName(name), Invalid("not a valid name")) << name;
  }
  EXPECT_THAT(CheckFileName(std::string("a\0b", 3)), Invalid("not a valid name"));
}

TEST(NamesTest, TheLengthIsAtMost128) {
  EXPECT_THAT(CheckRequestId(std::string(128, 'a')), IsOk());
  EXPECT_THAT(CheckRequestId(std::string(129, 'a')), Invalid("not a valid name"));
}

}  // namespace
}  // namespace stemma
