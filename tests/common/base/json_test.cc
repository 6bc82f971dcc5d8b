#include "common/base/json.h"

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using testing::Invalid;
using testing::IsOk;

TEST(JsonTest, RepeatedKeysCountPerObject) {
  EXPECT_THAT(ParseJson(R"([{"a": 1}, {"a": {"a": 2}}])"), IsOk());
  EXPECT_THAT(ParseJson(R"({"b": [{"a": 1, "a": 2}]})"), Invalid("key \"a\" appears twice"));
}

TEST(JsonTest, DepthAndCountAreLimited) {
  EXPECT_THAT(ParseJson("[[[1]]]", {.max_depth = 3}), IsOk());
  EXPECT_THAT(ParseJson("[[[[1]]]]", {.max_depth = 3}), Invalid("nested deeper than 3"));
  EXPECT_THAT(ParseJson("[1,2]", {.max_values = 3}), IsOk());
  EXPECT_THAT(ParseJson("[1,2,3]", {.max_values = 3}), Invalid("more than 3"));
}

TEST(JsonTest, WhatPythonWritesForNonFiniteNumbersIsRefusedWithItsPlace) {
  EXPECT_THAT(ParseJson("[1, NaN]"), Invalid("not JSON at byte 5"));
  EXPECT_THAT(ParseJson("[1e999]"), Invalid("not JSON at byte 6: number overflow parsing '1e999'"));
  EXPECT_THAT(ParseJson("[Infinity]"), Invalid("not JSON"));
  EXPECT_THAT(ParseJson("[1e400]"), Invalid("not JSON"));
}

TEST(JsonTest, AnythingAfterTheValueIsRefused) {
  EXPECT_THAT(ParseJson("{} {}"), Invalid("not JSON"));
  EXPECT_THAT(ParseJson(std::string_view("{}\0", 3)), Invalid("not JSON"));
}

}  // namespace
}  // namespace stemma
