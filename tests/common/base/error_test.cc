#include "common/base/error.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stemma {
namespace {

using absl::StatusCode;

TEST(ErrorTest, ReasonAndDetailsComeBack) {
  const absl::Status status = MakeError(
      Reason::kQueueFull, "64 requests are queued",
      {.uid = "g1", .field = "groups", .retry_after = absl::Milliseconds(1500), .metadata = {{"depth", "64"}}});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "64 requests are queued");
  EXPECT_EQ(ErrorReason(status), "QUEUE_FULL");
  const ErrorDetails details = GetErrorDetails(status);
  EXPECT_EQ(details.uid, "g1");
  EXPECT_EQ(details.field, "groups");
  EXPECT_EQ(details.retry_after, absl::Milliseconds(1500));
  EXPECT_EQ(details.metadata.at("depth"), "64");
}

TEST(ErrorTest, AStatusWithoutDetailsHasNoReason) {
  EXPECT_EQ(ErrorReason(absl::InternalError("x")), "");
  EXPECT_EQ(ErrorReason(absl::OkStatus()), "");
  EXPECT_TRUE(FromRpcStatus(ToRpcStatus(absl::OkStatus())).ok());
}

TEST(ErrorTest, TheWireFormKeepsEverything) {
  const absl::Status status = MakeError(Reason::kStepMismatch, "the model is at step 3", {.metadata = {{"step", "3"}}});
  const google::rpc::Status wire = ToRpcStatus(status);
  EXPECT_EQ(wire.code(), 10);
  const absl::Status back = FromRpcStatus(wire);
  EXPECT_EQ(back.code(), status.code());
  EXPECT_EQ(back.message(), status.message());
  EXPECT_EQ(ErrorReason(back), "STEP_MISMATCH");
  EXPECT_EQ(GetErrorDetails(back).metadata.at("step"), "3");
}

TEST(ErrorTest, AtMostTwentyViolationsTravelAndAllAreCounted) {
  std::vector<FieldViolation> violations;
  for (int i = 0; i < 50; ++i) {
    violations.push_back({"groups[" + std::to_string(i) + "].uid", std::string(1000, 'x')});
  }
  const absl::Status status = MakeError(Reason::kInvalidRequest, "50", {.violations = violations});
  const ErrorDetails details = GetErrorDetails(status);
  EXPECT_EQ(details.violations.size(), 20u);
  EXPECT_EQ(details.violations[0].field, "groups[0].uid");
  EXPECT_EQ(details.field, "groups[0].uid");
  EXPECT_EQ(details.metadata.at("violations"), "50");
  EXPECT_LT(ToRpcStatus(status).ByteSizeLong(), 6000u) << "must fit gRPC's 8 KiB of metadata as base64";
}

// A client's text of any length and of any characters: what gRPC sends (the message percent-encoded, and the details
// with the message in base64) fits its 8 KiB, and the message is cut between characters.
TEST(ErrorTest, TheLargestErrorFitsTheMetadata) {
  for (const std::string& character : {std::string("x"), std::string("%"), std::string("\xe2\x98\x83")}) {
    std::string text;
    while (text.size() < 100000) text += character;
    std::vector<FieldViolation> violations(50, {text, text});
    const absl::Status status = MakeError(Reason::kInvalidRequest, text,
                                          {.uid = text, .violations = violations, .metadata = {{"lineage", text}}});
    size_t encoded = 0;
    for (const char c : std::string(status.message())) encoded += c >= 0x20 && c < 0x7f && c != '%' ? 1 : 3;
    EXPECT_LT(encoded + ToRpcStatus(status).ByteSizeLong() * 4 / 3, 8000u) << character;
    EXPECT_EQ((status.message().size() - 3) % character.size(), 0u) << "cut inside a character";
    EXPECT_EQ(ErrorReason(status), "INVALID_REQUEST");
  }
}

TEST(ErrorTest, ACallerThatKeptSomeViolationsSaysTheCount) {
  const absl::Status status =
      MakeError(Reason::kInvalidRequest, "m", {.violations = {{"f", "d"}}, .metadata = {{"violations", "300"}}});
  EXPECT_EQ(GetErrorDetails(status).metadata.at("violations"), "300");
}

TEST(ErrorTest, LongTextIsCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "\xc3\xa4";
  const absl::Status status = MakeError(Reason::kInvalidRequest, "m", {.uid = text});
  const std::string uid = GetErrorDetails(status).uid;
  EXPECT_LE(uid.size(), 160u);
  EXPECT_EQ((uid.size() - 3) % 2, 0u) << "half a character is left";
}

TEST(ErrorTest, FailuresSayWhoseFaultItIs) {
  const auto category = [](Reason reason) { return ToFailure(MakeError(reason, "m")).category(); };
  EXPECT_EQ(category(Reason::kShortStream), "USER");
  EXPECT_EQ(category(Reason::kNonfiniteGradient), "USER");
  EXPECT_EQ(category(Reason::kGroupTooLarge), "USER");
  EXPECT_EQ(category(Reason::kLimitExceeded), "USER");
  EXPECT_EQ(category(Reason::kQueueFull), "SERVER");
  EXPECT_EQ(category(Reason::kRolledBack), "SERVER");
  EXPECT_EQ(category(Reason::kReadOnly), "SERVER");
  EXPECT_EQ(category(Reason::kAttemptsExhausted), "SERVER");
  const auto of_code = [](StatusCode code) { return ToFailure(RelayError(code, "NEWER_THAN_US", "m")).category(); };
  EXPECT_EQ(of_code(StatusCode::kFailedPrecondition), "USER");
  EXPECT_EQ(of_code(StatusCode::kUnavailable), "SERVER");
}

TEST(ErrorTest, CodeAndRetryInfoAreThoseOfTheReasonsRow) {
  for (const ReasonRow& row : ReasonTable()) {
    const absl::Status status = MakeError(row.reason, "m");
    EXPECT_EQ(status.code(), row.code) << row.name;
    EXPECT_EQ(ErrorReason(status), row.name);
    EXPECT_TRUE(HasReason(status, row.reason)) << row.name;
    EXPECT_EQ(GetErrorDetails(status).retry_after, row.retry ? kRetryAfter : absl::ZeroDuration()) << row.name;
    EXPECT_EQ(FindReason(row.name), row.reason);
    // What may succeed by itself is no fault of the request.
    EXPECT_FALSE(row.retry && row.category == Category::kUser) << row.name;
  }
  EXPECT_EQ(FindReason("NEWER_THAN_US"), std::nullopt);
  EXPECT_EQ(FindReason(""), std::nullopt);
}

TEST(ErrorTest, AFailureReadsBackAsTheStatus) {
  const absl::Status status = MakeError(Reason::kInvalidRequest, "m",
                                        {.uid = "g", .field = "f", .metadata = {{"lineage", "a-1"}, {"step", "3"}}});
  const absl::Status back = FromFailure(ToFailure(status));
  EXPECT_EQ(back.code(), status.code());
  EXPECT_EQ(ErrorReason(back), "INVALID_REQUEST");
  EXPECT_EQ(GetErrorDetails(back).field, "f");
  EXPECT_EQ(GetErrorDetails(back).metadata, GetErrorDetails(status).metadata);
  EXPECT_FALSE(FromFailure(v1::Failure()).ok());
}

}  // namespace
}  // namespace stemma
