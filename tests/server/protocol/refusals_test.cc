// What is refused because of the server's machine is counted, and said once a minute.
#include "server/protocol/refusals.h"

#include <optional>
#include <string>

#include "common/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/protocol/outbox.h"

namespace stemma::server {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;

constexpr absl::Time kFirstRefusal = absl::UnixEpoch();

TEST(RefusalsTest, EachReasonIsCountedAndNoOther) {
  Refusals refusals;
  for (const Reason reason : kRefusalReasons) {
    EXPECT_TRUE(refusals.Count(kFirstRefusal, MakeError(reason, "x")).has_value()) << RowOf(reason).name;
  }
  EXPECT_FALSE(refusals.Count(kFirstRefusal, absl::OkStatus()));
  EXPECT_FALSE(refusals.Count(kFirstRefusal, absl::ResourceExhaustedError("x")));
  EXPECT_FALSE(refusals.Count(kFirstRefusal, MakeError(Reason::kQueueFull, "x")));
  EXPECT_THAT(refusals.counts(), ElementsAre(1, 1, 1, 1));
}

TEST(RefusalsTest, AReasonIsSaidOnceAMinuteAndAllAreCounted) {
  Refusals refusals;
  const absl::Status full = MakeError(Reason::kDiskFull, "no room");
  EXPECT_THAT(refusals.Count(kFirstRefusal, full), Optional(Eq("refused with DISK_FULL: no room")));
  for (int second = 1; second < 60; ++second) {
    EXPECT_FALSE(refusals.Count(kFirstRefusal + absl::Seconds(second), full)) << second;
  }
  EXPECT_THAT(refusals.Count(kFirstRefusal + absl::Seconds(60), full), Optional(HasSubstr("(60 calls since")));
  EXPECT_THAT(refusals.Count(kFirstRefusal + absl::Seconds(200), full), Optional(Not(HasSubstr("since"))));
  EXPECT_EQ(refusals.counts()[0], 62u);
}

TEST(RefusalsTest, WhateverIsAnsweredSoIsCountedAndWarnedOf) {
  Outbox out;
  out.Begin(kFirstRefusal);
  out.Reply(1, MakeError(Reason::kReadOnly, "no"));
  out.Reply(2, MakeError(Reason::kReadOnly, "no"));
  out.Reply(3, MakeError(Reason::kNotFound, "no"));
  out.Reply(4, v1::RequestStatus());
  EXPECT_EQ(out.refusals().counts()[2], 2u);
  const Decision decision = out.Take();
  ASSERT_EQ(decision.reasons.size(), 1u);
  EXPECT_EQ(decision.reasons[0].level, LogLevel::kWarning);
  EXPECT_EQ(decision.actions.size(), 4u);
}

TEST(RefusalsTest, WhatTheLogSaysAlreadyIsNotSaidAgain) {
  Outbox out;
  out.Begin(kFirstRefusal);
  out.AddWarning("checkpoint a is not saved: no room");
  out.Reply(1, MakeError(Reason::kDiskFull, "no room"));
  EXPECT_EQ(out.refusals().counts()[0], 1u);
  EXPECT_EQ(out.Take().reasons.size(), 1u);
}

}  // namespace
}  // namespace stemma::server
