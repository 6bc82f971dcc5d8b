// A spooled request's name says by which start of the server it was written.
#include "server/protocol/spool_names.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace stemma::server {
namespace {

TEST(SpoolNamesTest, ANameSaysItsStart) {
  EXPECT_EQ(EpochOfSpoolName(SpoolPrefix(1) + "1"), 1u);
  EXPECT_EQ(EpochOfSpoolName(SpoolPrefix(12) + "345"), 12u);
}

TEST(SpoolNamesTest, WhatNoStartGivesHasNone) {
  for (const char* name :
       {"", "-", "1", "1-", "-1", "a-1", "1-a", "1-2-3", "1.5-2", "99999999999999999999-1", "model"}) {
    EXPECT_EQ(EpochOfSpoolName(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace stemma::server
