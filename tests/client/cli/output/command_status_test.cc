#include "client/cli/output/command_status.h"

#include "common/base/error.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace stemma::cli {
namespace {

grpc::Status FromServer(absl::StatusCode code, const std::string& reason, const ErrorDetails& details = {}) {
  const google::rpc::Status status = ToRpcStatus(RelayError(code, reason, "what happened", details));
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), status.message(), status.SerializeAsString());
}

TEST(CommandStatusTest, ExitCodesTellUsageConnectionServingAndPartialApart) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("x")), 1);
  EXPECT_EQ(ExitCodeOf(UsageError("x")), 2);
  EXPECT_EQ(ExitCodeOf(ConnectError("x")), 3);
  EXPECT_EQ(ExitCodeOf(NotServingError("x")), 4);
  EXPECT_EQ(ExitCodeOf(PartialError("x")), 5);
}

TEST(CommandStatusTest, ARefusedCallExitsWith64AndItsCode) {
  const absl::Status status = RpcStatus(FromServer(absl::StatusCode::kInvalidArgument, "SHORT_STREAM"));
  EXPECT_EQ(ExitCodeOf(status), 64 + 3);
  EXPECT_FALSE(IsRetryable(status));
}

TEST(CommandStatusTest, ACallThatTheServerDoesNotKnowIsSaid) {
  const absl::Status status = RpcStatus(grpc::Status(grpc::UNIMPLEMENTED, ""));
  EXPECT_EQ(ExitCodeOf(status), 64 + 12);
  EXPECT_NE(ErrorText(status).find("the server does not know this call, or cannot read it"), std::string::npos);
  EXPECT_EQ(RpcStatus(grpc::Status(grpc::UNIMPLEMENTED, "said")).message(), "said");
}

TEST(CommandStatusTest, UnavailableWithoutOurReasonIsAConnectionLost) {
  const absl::Status status = RpcStatus(grpc::Status(grpc::UNAVAILABLE, "socket closed"));
  EXPECT_EQ(ExitCodeOf(status), 3);
  EXPECT_TRUE(IsRetryable(status));
}

TEST(CommandStatusTest, ALoadingServerIsNotServing) {
  EXPECT_EQ(ExitCodeOf(RpcStatus(FromServer(absl::StatusCode::kUnavailable, "STARTING"))), 4);
  EXPECT_EQ(ExitCodeOf(RpcStatus(FromServer(absl::StatusCode::kUnavailable, "DRAINING"))), 4);
  EXPECT_EQ(ExitCodeOf(RpcStatus(FromServer(absl::StatusCode::kUnavailable, "ATTEMPTS_EXHAUSTED"))), 64 + 14);
}

TEST(CommandStatusTest, TextNamesCodeReasonFieldsAndWhenToRetry) {
  const ErrorDetails details = {
      .uid = "g7", .violations = {{"groups[3].prompt_tokens", "is empty"}}, .retry_after = absl::Seconds(2)};
  const std::string text =
      ErrorText(RpcStatus(FromServer(absl::StatusCode::kInvalidArgument, "INVALID_REQUEST", details)));
  EXPECT_EQ(text,
            "error: INVALID_ARGUMENT: what happened\n"
            "  reason: INVALID_REQUEST\n"
            "  group: g7\n"
            "  groups[3].prompt_tokens: is empty\n"
            "  violations: 1\n"
            "  retry after: 2s");
}

TEST(CommandStatusTest, TextOfOthersCommandsNoTerminalAndKeepsItsLines) {
  EXPECT_EQ(ErrorText(UsageError("uid \x1b[2Jg\ntwo\r")), "error: uid \\x1b[2Jg\ntwo\\x0d");
}

TEST(CommandStatusTest, DetailsThatAreNoMessageAreIgnored) {
  const absl::Status status = RpcStatus(grpc::Status(grpc::NOT_FOUND, "no such request", "\xff\xff\xff"));
  EXPECT_EQ(ExitCodeOf(status), 64 + 5);
  EXPECT_EQ(ErrorText(status), "error: NOT_FOUND: no such request");
}

TEST(CommandStatusTest, AnErrorOfOurOwnShowsNoCode) {
  EXPECT_EQ(ErrorText(UsageError("--start is too large")), "error: --start is too large");
}

}  // namespace
}  // namespace stemma::cli
