#include "server/protocol/job_queue.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stemma::server {
namespace {

using ::testing::ElementsAre;

CallJob LogProb(CallId call, uint64_t bytes) {
  auto request = std::make_shared<TrainingRequest>();
  request->bytes = bytes;
  return {.call = call, .work = LogProbJob{request, {}}};
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
  EXPECT_TRUE(queue.FindCallJob(pass)->has_payload());
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

}  // namespace
}  // namespace stemma::server
