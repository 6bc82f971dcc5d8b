// Which ranks an engine meets before it loads its model. That real ones meet: tests/worker/rpc/session_test.py.
#include "worker/engine/rank_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/engine/open_device.h"

namespace stemma::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// None comes in any time; the model is not there either, which is found only after the others.
constexpr RendezvousTimeouts kShort = {.join = absl::Milliseconds(200), .collective = absl::Seconds(1)};

struct Made {
  absl::Status status;
  std::vector<std::string> told;
};

Made Make(uint32_t ranks, uint32_t rank, const std::string& store, const std::string& address = "127.0.0.1") {
  internal::v1::Configure configure;
  configure.mutable_config()->mutable_mesh()->set_dp(ranks);
  configure.mutable_config()->set_model("/no/model/is/here");
  configure.mutable_config()->set_dtype("fp32");
  configure.set_rank(rank);
  configure.set_store(store);
  Made made;
  const TellStore tell = [&](const internal::v1::StoreOpened& opened) { made.told.push_back(opened.address()); };
  made.status = CreateEngine(**OpenDevice({"cpu", 0}), configure, {"w1", address}, tell, kShort).status();
  return made;
}

TEST(RankEngineTest, OneRankMeetsNobody) {
  const Made made = Make(1, 0, "", /*address=*/"");
  EXPECT_TRUE(made.told.empty());
  EXPECT_THAT(std::string(made.status.message()), HasSubstr("/no/model/is/here"));
  EXPECT_FALSE(absl::IsUnavailable(made.status));
}

TEST(RankEngineTest, RankZeroTellsItsStoreAndMissesTheOthers) {
  const Made made = Make(3, 0, "");
  ASSERT_EQ(made.told.size(), 1u);
  EXPECT_TRUE(ParseDialAddress(made.told[0]).ok()) << made.told[0];
  EXPECT_EQ(ParseDialAddress(made.told[0])->host, "127.0.0.1");
  EXPECT_EQ(made.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(made.status.message()), HasSubstr("ranks 1, 2 of 3 did not come"));
}

TEST(RankEngineTest, AnotherRankMissesTheStore) {
  const Made made = Make(3, 1, "127.0.0.1:1");
  EXPECT_TRUE(made.told.empty());
  EXPECT_EQ(made.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(made.status.message()), HasSubstr("127.0.0.1:1"));
}

TEST(RankEngineTest, WhatIsNoPlaceInTheMeshIsRefused) {
  for (const Made& made : {Make(2, 2, "127.0.0.1:1"), Make(2, 1, "nowhere"), Make(2, 0, "", /*address=*/"")}) {
    EXPECT_EQ(made.status.code(), absl::StatusCode::kInvalidArgument) << made.status;
  }
  EXPECT_THAT(std::string(Make(2, 2, "").status.message()), AllOf(HasSubstr("mesh of 2"), HasSubstr("rank 2")));
  EXPECT_THAT(std::string(Make(2, 0, "", /*address=*/"").status.message()), HasSubstr("--address"));
}

}  // namespace
}  // namespace stemma::worker
