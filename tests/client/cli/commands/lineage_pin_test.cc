// What a command that was held to a lineage sends, notices and says.
#include "client/cli/commands/lineage_pin.h"

#include "client/cli/output/command_status.h"
#include "common/base/error.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

v1::ModelInfo Model(const std::string& lineage, uint64_t step) {
  v1::ModelInfo model;
  model.set_lineage(lineage);
  model.set_step(step);
  return model;
}

v1::RequestStatus Answer(const std::string& lineage, uint64_t step) {
  v1::RequestStatus status;
  status.set_lineage(lineage);
  status.mutable_result()->add_steps()->set_step(step);
  return status;
}

absl::Status Lost(absl::StatusCode code, const std::string& reason) {
  return WithRpcExitCode(RelayError(code, reason, "gone", {.metadata = {{"lineage", "b-1"}, {"step", "0"}}}));
}

std::string Expected(const LineagePin& pin) {
  v1::RequestHeader header;
  header.set_expected_lineage("of the trace");
  pin.Set(header);
  return header.has_expected_lineage() ? header.expected_lineage() : "none";
}

TEST(LineagePinTest, RequestsAreHeldToTheLineageOfTheBegin) {
  LineagePin pin(/*follow=*/false);
  EXPECT_EQ(Expected(pin), "none");
  pin.Begin(Model("a-1", 3));
  EXPECT_EQ(Expected(pin), "a-1");
  EXPECT_EQ(pin.Saw(Answer("a-1", 4)), "");
  EXPECT_EQ(Expected(pin), "a-1");
}

TEST(LineagePinTest, ANewNameOfTheLineageIsNoLoss) {
  LineagePin pin(/*follow=*/false);
  pin.Begin(Model("a-1", 3));
  EXPECT_EQ(pin.Saw(Answer("a-2", 4)),
            "lineage a-1 goes on as a-2: steps that were computed again have other bits, and none is lost");
  EXPECT_EQ(Expected(pin), "a-2");
  EXPECT_EQ(pin.Saw(Answer("a-2", 5)), "");
}

TEST(LineagePinTest, AServerThatNamesNoneIsHeldToNone) {
  LineagePin pin(/*follow=*/false);
  pin.Begin(Model("", 0));
  EXPECT_EQ(pin.Saw(Answer("", 1)), "");
  EXPECT_EQ(Expected(pin), "none");
}

TEST(LineagePinTest, ALossEndsTheCommandAndSaysWhatIsLost) {
  LineagePin pin(/*follow=*/false);
  pin.Begin(Model("a-1", 3));
  pin.Saw(Answer("a-1", 7));
  pin.Saw(Answer("a-1", 5));  // an outcome that was kept
  for (const auto& [code, reason] : {std::pair(absl::StatusCode::kAborted, "LINEAGE_MISMATCH"),
                                     std::pair(absl::StatusCode::kFailedPrecondition, "ROLLED_BACK")}) {
    const absl::Status error = Lost(code, reason);
    EXPECT_FALSE(pin.MayGoOn(error));
    const absl::Status explained = pin.Explained(error);
    EXPECT_EQ(ErrorReason(explained), reason);
    EXPECT_EQ(ExitCodeOf(explained), 64 + static_cast<int>(code));
    EXPECT_NE(explained.message().find("began with lineage a-1 and saw steps up to 7"), std::string::npos) << explained;
    EXPECT_NE(explained.message().find("--follow-lineage"), std::string::npos) << explained;
    EXPECT_EQ(GetErrorDetails(explained).metadata.at("lineage"), "b-1");
  }
}

TEST(LineagePinTest, OtherErrorsStayAsTheyAre) {
  LineagePin pin(/*follow=*/true);
  const absl::Status error = MakeError(Reason::kStepMismatch, "no");
  EXPECT_EQ(pin.Explained(error), error);
  EXPECT_FALSE(pin.MayGoOn(error));
  EXPECT_FALSE(pin.MayGoOn(absl::OkStatus()));
}

TEST(LineagePinTest, WhoFollowsIsHeldToNoneAndHearsOfEachChange) {
  LineagePin pin(/*follow=*/true);
  pin.Begin(Model("a-1", 3));
  EXPECT_EQ(Expected(pin), "none");
  pin.Saw(Answer("a-1", 4));
  const absl::Status error = Lost(absl::StatusCode::kFailedPrecondition, "ROLLED_BACK");
  EXPECT_TRUE(pin.MayGoOn(error));
  EXPECT_EQ(pin.Saw(error), "going on at step 0 of lineage b-1; steps up to 4 were seen of lineage a-1");
  EXPECT_EQ(pin.Saw(Answer("b-1", 1)), "");
  EXPECT_EQ(pin.Saw(Answer("c-1", 1)), "going on at step 1 of lineage c-1; steps up to 1 were seen of lineage b-1");
  EXPECT_EQ(pin.lineage(), "c-1");
}

}  // namespace
}  // namespace stemma::cli
