#include "server/protocol/job_queue.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/protocol/call_counts.h"

namespace stemma::server {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

CallJob LogProb(CallId call, uint64_t bytes) {
  auto request = std::make_shared<TrainingRequest>();
  request->bytes = bytes;
  return {.call = call, .work = LogProbJob{request, {}}};
}

CallJob Verify(CallId call, uint64_t bytes, const std::string& checkpoint) {
  auto request = std::make_shared<TrainingRequest>();
  request->kind = TrainingRequest::Kind::kVerify;
  request->bytes = bytes;
  request->update.mutable_old()->set_from(v1::LogProbSource::WEIGHTS);
  request->update.mutable_old()->set_weights(checkpoint);
  return {.call = call, .work = VerifyJob{request, nullptr, nullptr}};
}

CallJob ExportCall(CallId call, const std::string& name) {
  ExportJob job;
  job.request.set_name(name);
  return {.call = call, .work = job};
}

TEST(JobQueueTest, JobsLeaveInTheirOrderAndOneThatIsPutBackIsNext) {
  JobQueue queue;
  queue.AddUpdate("a");
  const std::string pass = queue.AddCallJob(LogProb(1, 10));
  queue.AddUpdate("b");
  EXPECT_EQ(queue.PlaceOf("a"), 1u);
  EXPECT_EQ(queue.PlaceOf("b"), 3u);
  EXPECT_THAT(queue.Places(), UnorderedElementsAre(Pair("a", 1u), Pair(pass, 2u), Pair("b", 3u)));
  EXPECT_EQ(queue.TakeNext(), "a");
  EXPECT_EQ(queue.PlaceOf("a"), std::nullopt) << "it runs";
  queue.PutBack("a");
  EXPECT_EQ(queue.TakeNext(), "a");
  EXPECT_EQ(queue.TakeNext(), pass);
  queue.RemoveUpdate("b");
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.TakeNext(), std::nullopt);
}

TEST(JobQueueTest, ACallJobIsHeldUntilItIsRemovedWhereverItIs) {
  JobQueue queue;
  const std::string pass = queue.AddCallJob(LogProb(1, 10)), other = queue.AddCallJob(LogProb(2, 5));
  const std::string weights = queue.AddCallJob(ExportCall(3, "x"));
  EXPECT_THAT(queue.CallJobIds(), ElementsAre(weights, pass, other));
  EXPECT_EQ(pass[0], '~') << "no request id begins so";
  EXPECT_EQ(queue.call_job_bytes(), 15u);
  EXPECT_EQ(queue.TakeNext(), pass);
  ASSERT_NE(queue.FindCallJob(pass), nullptr) << "it runs";
  EXPECT_NE(queue.FindCallJob(pass)->request(), nullptr);
  EXPECT_EQ(queue.FindCallJob(weights)->request(), nullptr);
  EXPECT_EQ(queue.call_job_bytes(), 15u);
  EXPECT_EQ(queue.RemoveCallJob(pass).call, 1u);
  EXPECT_EQ(queue.FindCallJob(pass), nullptr);
  EXPECT_EQ(queue.call_job_bytes(), 5u);
  EXPECT_EQ(queue.RemoveCallJob(other).call, 2u);
  EXPECT_EQ(queue.call_job_bytes(), 0u);
  EXPECT_EQ(queue.num_call_jobs(), 1u);
  EXPECT_EQ(queue.TakeNext(), weights) << "what was removed left the queue too";
}

TEST(JobQueueTest, CallsAndExportsAreFound) {
  JobQueue queue;
  queue.AddCallJob(LogProb(1, 10));
  const std::string weights = queue.AddCallJob(ExportCall(3, "x"));
  EXPECT_EQ(queue.CallJobOf(3), weights);
  EXPECT_EQ(queue.CallJobOf(9), "");
  EXPECT_TRUE(queue.HasExport("x"));
  EXPECT_FALSE(queue.HasExport("y"));
  queue.TakeNext();
  queue.TakeNext();
  EXPECT_TRUE(queue.HasExport("x")) << "while it is written";
  queue.RemoveCallJob(weights);
  EXPECT_FALSE(queue.HasExport("x"));
}

TEST(JobQueueTest, AVerificationCountsItsBytesAndReadsTheCheckpointsOfItsHeader) {
  JobQueue queue;
  const std::string id = queue.AddCallJob(Verify(1, 7, "start"));
  EXPECT_EQ(id, "~verify/1");
  EXPECT_EQ(queue.call_job_bytes(), 7u);
  EXPECT_TRUE(queue.ReadsCheckpoint("start"));
  EXPECT_FALSE(queue.ReadsCheckpoint("policy") || queue.ReadsCheckpoint("other"));
  queue.RemoveCallJob(id);
  EXPECT_FALSE(queue.ReadsCheckpoint("start"));
  EXPECT_EQ(queue.call_job_bytes(), 0u);
}

TEST(CallCountsTest, EveryEndIsCountedOnceByWhatItWasAndHowItEnded) {
  CallCounts counts;
  counts.Count(LogProb(1, 10), absl::OkStatus());
  counts.Count(LogProb(2, 10), absl::CancelledError("the client left"));
  counts.Count(LogProb(3, 10), absl::CancelledError("the client left"));
  for (int i = 0; i < 3; ++i) counts.Count(LogProb(4, 10), absl::InternalError("no memory"));
  for (int i = 0; i < 4; ++i) counts.Count(ExportCall(5, "x"), v1::ExportWeightsResponse());
  counts.Count(ExportCall(6, "x"), absl::AlreadyExistsError("x"));
  counts.Count(Verify(8, 1, "policy"), v1::VerifyGroupResponse());
  counts.Count({.call = 7, .work = SaveJob{}}, absl::OkStatus());
  const auto numbers = [](const CallCounts::Ends& ends) { return std::vector{ends.done, ends.failed, ends.cancelled}; };
  EXPECT_THAT(numbers(counts.log_prob_passes), ElementsAre(1, 3, 2));
  EXPECT_THAT(numbers(counts.verifications), ElementsAre(1, 0, 0));
  EXPECT_THAT(numbers(counts.exports), ElementsAre(4, 1, 0));
}

}  // namespace
}  // namespace stemma::server
