#include "server/protocol/worker_messages.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "server/protocol/result_check.h"
#include "tests/testing/status_matchers.h"

namespace stemma::server {
namespace {

using testing::Invalid;
using testing::IsOk;

internal::v1::WorkerMessage Message(const std::string& text) {
  internal::v1::WorkerMessage message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

std::string Long(size_t bytes) { return std::string(bytes, 'x'); }

TEST(WorkerMessagesTest, WhatAnHonestWorkerSaysPasses) {
  for (
      const char* text :
      {R"(register { incarnation: "00ff" host: "gpu-1" version: "0.1" device: "cpu" memory_free_bytes: 1099511627776 })",
       "ready { config { threads: 4096 } }",
       R"(ready { device_name: "NVIDIA H200" kernels_off { kernel: "loss" reason: "NaN" } kernels_off { kernel: "logits" } })",
       "ready { links { axis: 'tp' ranks: 2 message_s: 1e-4 byte_s: 1e-9 } }",
       R"(heartbeat { phase: "prefix_backward" progress: 9 })",
       R"(vote { key { request_id: "a/b" } yes: true grad_norm_squared: nan sums { policy_loss: inf entropy_nats: nan } })",
       R"(vote { no_reason: NONFINITE message: "wave 3" })", "vote { no_reason: 77 }", "vote { }",
       "applied { apply_s: 0 }", R"(results { id: "a" })", R"(log_prob_done { id: "~log-prob/1" })",
       R"(verify_done { id: "~verify/1" reuse_s: 1 gradients { name: "layers.0.qkv.weight" error_squared: inf } })",
       R"(export_done { id: "~export/1" bytes: 9 })", "refused { }"}) {
    EXPECT_THAT(CheckWorkerMessage(Message(text)), IsOk()) << text;
  }
}

// As those of a container's group, whose names are ids, where the host's groups are seen from inside.
TEST(WorkerMessagesTest, AGroupMayLieDeep) {
  const std::string path = Long(2000);
  EXPECT_THAT(CheckWorkerMessage(Message(
                  absl::StrCat("register { incarnation: 'a' memory_group: '", path, "' core_group: '", path, "' }"))),
              IsOk());
}

TEST(WorkerMessagesTest, AMessageOutsideItsRangesIsRefusedByItsField) {
  const std::string name = Long(200), text = Long(2000);
  std::string many;
  for (int i = 0; i < 65; ++i) absl::StrAppend(&many, "kernels_off { kernel: 'k", i, "' } ");
  const std::pair<std::string, const char*> cases[] = {
      {"", "of a kind"},
      {"register { }", "register.incarnation"},
      {absl::StrCat("register { incarnation: '", name, "' }"), "register.incarnation"},
      {"register { incarnation: 'a b' }", "register.incarnation"},
      {absl::StrCat("register { incarnation: 'a' host: '", text, "' }"), "register.host"},
      {absl::StrCat("register { incarnation: 'a' version: '", text, "' }"), "register.version"},
      {absl::StrCat("register { incarnation: 'a' machine: '", text, "' }"), "register.machine"},
      {absl::StrCat("register { incarnation: 'a' memory_group: '", Long(5000), "' }"), "register.memory_group"},
      {absl::StrCat("register { incarnation: 'a' core_group: '", Long(5000), "' }"), "register.core_group"},
      {"register { incarnation: 'a' device: '../x' }", "register.device"},
      {"register { incarnation: 'a' memory_bytes: 18446744073709551615 }", "register.memory_bytes"},
      {"register { incarnation: 'a' memory_free_bytes: 9223372036854775808 }", "register.memory_free_bytes"},
      {"register { incarnation: 'a' host_free_bytes: 9223372036854775808 }", "register.host_free_bytes"},
      {"ready { config { threads: 4097 } }", "ready.config.threads"},
      {"ready { links { axis: 'ep' ranks: 2 message_s: 1e-4 byte_s: 1e-9 } }", "ready.links.axis"},
      {"ready { links { axis: 'tp' ranks: 2 message_s: nan byte_s: 1e-9 } }", "ready.links.message_s"},
      {"ready { links { axis: 'tp' ranks: 2 message_s: 1e-4 byte_s: -1e-9 } }", "ready.links.byte_s"},
      {absl::StrCat("ready { device_name: '", text, "' }"), "ready.device_name"},
      {"ready { kernels_off { reason: 'no name' } }", "ready.kernels_off.kernel is no name"},
      {"ready { kernels_off { kernel: 'a' } kernels_off { kernel: 'a' } }", "ready.kernels_off.kernel has a twice"},
      {absl::StrCat("ready { kernels_off { kernel: 'a' reason: '", text, "' } }"), "ready.kernels_off.reason"},
      {absl::StrCat("ready { ", many, " }"), "ready.kernels_off is too long"},
      {absl::StrCat("heartbeat { phase: '", text, "' }"), "heartbeat.phase"},
      {"vote { grad_norm_squared: -1e-300 }", "vote.grad_norm_squared"},
      {"vote { grad_norm_squared: -inf }", "vote.grad_norm_squared"},
      {"vote { yes: true no_reason: CANCELLED }", "vote.no_reason"},
      {"vote { yes: true no_reason: 77 }", "vote.no_reason is 77"},
      {"vote { sums { prefix_forward_s: -1e-300 } }", "vote.sums.prefix_forward_s"},
      {"vote { yes: true sums { suffix_s: nan } }", "vote.sums.suffix_s"},
      {"vote { yes: true sums { agree_s: -1 } }", "vote.sums.agree_s"},
      {"vote { yes: true sums { split_s: -1 } }", "vote.sums.split_s"},
      {"vote { yes: true sums { reduce_s: inf } }", "vote.sums.reduce_s"},
      {"vote { yes: true sums { reduce_overlapped_s: -1 } }", "vote.sums.reduce_overlapped_s"},
      {"vote { yes: true sums { tensor_parallel_s: -1 } }", "vote.sums.tensor_parallel_s"},
      {"vote { yes: true sums { context_parallel_s: -1 } }", "vote.sums.context_parallel_s"},
      {"vote { yes: true sums { pipeline_s: -1 } }", "vote.sums.pipeline_s"},
      {"applied { gather_s: nan }", "applied.gather_s"},
      {"vote { sums { prefix_backward_s: inf } }", "vote.sums.prefix_backward_s"},
      {"vote { sums { prefix_forward_bytes: 18446744073709551615 } }", "vote.sums.prefix_forward_bytes"},
      {"vote { sums { suffix_bytes: 18446744073709551615 } }", "vote.sums.suffix_bytes"},
      {"vote { sums { prefix_backward_bytes: 18446744073709551615 } }", "vote.sums.prefix_backward_bytes"},
      {"vote { sums { peak_bytes: 18446744073709551615 } }", "vote.sums.peak_bytes"},
      {"vote { sums { state_bytes: 18446744073709551615 } }", "vote.sums.state_bytes"},
      {"vote { sums { host_bytes: 18446744073709551615 } }", "vote.sums.host_bytes"},
      {absl::StrCat("vote { key { request_id: '", text, "' } }"), "key.request_id"},
      {absl::StrCat("applied { key { incarnation: '", text, "' } }"), "key.incarnation"},
      {"applied { apply_s: -1 }", "applied.apply_s"},
      {"applied { apply_s: nan }", "applied.apply_s"},
      {"applied { apply_s: inf }", "applied.apply_s"},
      {absl::StrCat("results { id: '", text, "' }"), "results.id"},
      {absl::StrCat("log_prob_done { id: '", text, "' }"), "log_prob_done.id"},
      {absl::StrCat("verify_done { id: '", text, "' }"), "verify_done.id"},
      {"verify_done { reuse { grad_norm_squared: -1 } }", "vote.grad_norm_squared"},
      {"verify_done { dense { sums { suffix_s: nan } } }", "vote.sums.suffix_s"},
      {"verify_done { reuse_s: -1 }", "verify_done.reuse_s"},
      {"verify_done { dense_s: inf }", "verify_done.dense_s"},
      {"verify_done { gradients { name: 'a b' } }", "verify_done.gradients.name"},
      {"verify_done { gradients { name: 'a' error_squared: -1 } }", "verify_done.gradients has a square of -1"},
      {"verify_done { gradients { name: 'a' dense_squared: nan } }", "verify_done.gradients has a square of nan"},
      {absl::StrCat("export_done { id: '", text, "' }"), "export_done.id"},
      {absl::StrCat("refused { key { request_id: '", text, "' } }"), "key.request_id"}};
  for (const auto& [message, field] : cases)
    EXPECT_THAT(CheckWorkerMessage(Message(message)), Invalid(field)) << message;
}

TEST(WorkerMessagesTest, TextsAreOneLineOfBoundedLengthAndStayUtf8) {
  EXPECT_EQ(WorkerText("a\nb\tc\x7f"), "a b c ");
  EXPECT_EQ(WorkerText(Long(1000)), Long(1000));
  EXPECT_EQ(WorkerText(Long(1001)), Long(1000) + "...");
  EXPECT_EQ(WorkerText(Long(999) + "\xc3\xa9"), Long(999) + "...");
}

TEST(WorkerMessagesTest, AFailureHasACodeThatIsOneAndAReasonThatIsAWord) {
  v1::Failure failure;
  failure.set_code(static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
  failure.set_reason("DISK_FULL");
  failure.set_message("no room");
  EXPECT_EQ(FailureOfWorker(failure).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(FailureOfWorker(failure)), "DISK_FULL");
  for (const uint32_t code : {0u, 17u, 9999u, std::numeric_limits<uint32_t>::max()}) {
    failure.set_code(code);
    EXPECT_EQ(FailureOfWorker(failure).code(), absl::StatusCode::kInternal) << code;
    EXPECT_EQ(ErrorReason(FailureOfWorker(failure)), "INTERNAL") << code;
    EXPECT_EQ(FromFailure(failure).code(), absl::StatusCode::kInternal) << code;
  }
  failure.set_code(5);
  for (const std::string& reason :
       {std::string(), std::string("not a word"), std::string("FINE"), Long(3), std::string(65, 'A')}) {
    failure.set_reason(reason);
    EXPECT_EQ(ErrorReason(FailureOfWorker(failure)), "INTERNAL") << reason;
    EXPECT_EQ(FailureOfWorker(failure).code(), absl::StatusCode::kNotFound);
  }
  for (int i = 0; i < 9; ++i) (*failure.mutable_metadata())[absl::StrCat(i)] = Long(1000);
  failure.set_message(Long(100'000));
  EXPECT_LT(ToRpcStatus(FailureOfWorker(failure)).ByteSizeLong(), 2000u) << "it has to fit gRPC's metadata";
}

std::shared_ptr<const TrainingRequest> SharedTwoGroups() {
  auto request = std::make_shared<TrainingRequest>();
  for (const char* uid : {"a", "b"}) {
    v1::PromptGroup& group = request->groups.emplace_back();
    group.set_uid(uid);
    for (int i = 0; i < 2; ++i) {
      v1::Rollout& rollout = *group.add_rollouts();
      rollout.set_rollout_id(absl::StrCat(uid, i));
      rollout.set_response_tokens(std::string(static_cast<size_t>(4 * (i + 1)), '\0'));
    }
  }
  return request;
}

v1::GroupResult Result(const std::string& uid, const std::string& rollout, size_t bytes,
                       v1::LogProbDtype dtype = v1::FLOAT32) {
  v1::GroupResult result;
  result.set_uid(uid);
  result.set_dtype(dtype);
  result.add_rollouts()->set_rollout_id(rollout);
  result.mutable_rollouts(0)->set_log_probs(std::string(bytes, '\0'));
  return result;
}

TEST(ResultCheckTest, EachRolloutOfTheRequestMayComeOnceAtItsLength) {
  ResultCheck check(SharedTwoGroups());
  EXPECT_THAT(check.Add(Result("a", "a0", 4)), IsOk());
  EXPECT_THAT(check.Add(Result("a", "a1", 16, v1::FLOAT64)), IsOk());
  EXPECT_THAT(check.Add(Result("b", "b1", 0)), IsOk()) << "not run";
  EXPECT_THAT(check.Add(Result("a", "a0", 4)), Invalid("a second result of rollout a0"));
  EXPECT_THAT(check.Add(Result("b", "b1", 8)), Invalid("a second result"));
  EXPECT_THAT(check.Add(Result("b", "a0", 4)), Invalid("which the request does not have"));
  EXPECT_THAT(check.Add(Result("b", "c0", 4)), Invalid("which the request does not have"));
  EXPECT_THAT(check.Add(Result("b", "b0", 5)), Invalid("log_probs has 5 bytes for 1 tokens of 4 bytes"));
}

TEST(ResultCheckTest, AllHaveComeWhenEachRolloutWithTokensBroughtItsLogProbs) {
  ResultCheck check(SharedTwoGroups());
  const auto missing = [&check] { return std::string(check.CheckAllCame().message()); };
  EXPECT_EQ(ErrorReason(check.CheckAllCame()), "INTERNAL");
  EXPECT_EQ(missing(), "the workers ended the pass without the log-probs of 4 rollouts, the first is a0");
  EXPECT_THAT(check.Add(Result("b", "b0", 4)), IsOk());
  EXPECT_THAT(check.Add(Result("a", "a0", 4)), IsOk());
  EXPECT_THAT(check.Add(Result("b", "b1", 0)), IsOk());
  EXPECT_EQ(missing(), "the workers ended the pass without the log-probs of 2 rollouts, the first is a1")
      << "one without numbers does not count";
  ResultCheck whole(SharedTwoGroups());
  for (const char* uid : {"a", "b"}) {
    EXPECT_THAT(whole.Add(Result(uid, absl::StrCat(uid, 0), 4)), IsOk());
    EXPECT_FALSE(whole.CheckAllCame().ok()) << uid;
    EXPECT_THAT(whole.Add(Result(uid, absl::StrCat(uid, 1), 8)), IsOk());
  }
  EXPECT_THAT(whole.CheckAllCame(), IsOk());
}

TEST(ResultCheckTest, WhatIsNoResultIsRefused) {
  ResultCheck check(SharedTwoGroups());
  EXPECT_THAT(check.Add(v1::GroupResult()), Invalid("dtype 0"));
  EXPECT_THAT(check.Add(Result("a", "a0", 4, static_cast<v1::LogProbDtype>(7))), Invalid("dtype 7"));
  EXPECT_THAT(check.Add(Result("a", "a0", 4, v1::FLOAT64)), Invalid("log_probs has 4 bytes"));
  v1::GroupResult result = Result("b", "b0", 4);
  result.mutable_rollouts(0)->set_entropy("12345");
  EXPECT_THAT(check.Add(result), Invalid("entropy has 5 bytes"));
  result.clear_rollouts();
  EXPECT_THAT(check.Add(result), Invalid("no rollout"));
}

}  // namespace
}  // namespace stemma::server
