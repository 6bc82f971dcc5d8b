#include "common/base/utf8.h"

#include "gtest/gtest.h"

namespace stemma {
namespace {

TEST(Utf8Test, OtherBytesAreNone) {
  for (const char* text : {"", "/data/run 1", "/d\xc3\xa4ta", "\xef\xbf\xbd", "\xf0\x9f\x8c\xb1", "\x01"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  for (const char* text : {"/d\xff", "\xc3", "\xc3/", "\x80", "\xed\xa0\x80", "\xc0\xaf", "a\xf0\x9f\x8c"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
}

}  // namespace
}  // namespace stemma
