// What the CUDA copy engine makes of calls that CUDA refuses, and of an end with copies under way.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "tests/testing/namespaces.h"
#include "tests/worker/memory/fake_cuda/fake_runtime.h"
#include "worker/memory/cuda_copy_engine.h"

namespace stemma::testing {
namespace {

class CopyFailuresTest : public ::testing::Test {
 protected:
  CopyFailuresTest() {
    StartFakeRuntime(/*seed=*/1);
    engine_ = CudaCopyEngine::Create(FakeComputeStream()).value();
  }
  ~CopyFailuresTest() override {
    engine_.reset();
    EXPECT_EQ(FakeRuntimeObjects(), 0) << "streams and events are given back";
    EXPECT_EQ(FakeRuntimeMisuses(), 0);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next launch would take it for its own";
  }
  // Starts a copy of two spans.
  CopyTicket Start() {
    return engine_->StartCopyOut({{&from_[0], &to_[0], sizeof(int)}, {&from_[1], &to_[1], sizeof(int)}});
  }

  std::unique_ptr<CudaCopyEngine> engine_;
  const int from_[2] = {7, 8};
  int to_[2] = {};
};

// The second span is refused: nothing of the first is under way any more when the start returns.
TEST_F(CopyFailuresTest, AStartThatIsRefusedIsToldByWhatEndsItsTicket) {
  const std::function<absl::Status(CopyTicket)> ends[] = {
      [&](CopyTicket ticket) { return engine_->Wait(ticket); },
      [&](CopyTicket ticket) { return engine_->Done(ticket).status(); },
      [&](CopyTicket ticket) { return engine_->ComputeWaits(ticket); }};
  for (const auto& end : ends) {
    to_[0] = to_[1] = 0;
    FailFakeCall(FakeCall::kCopy, cudaErrorInvalidValue, /*after=*/1);
    const CopyTicket ticket = Start();
    EXPECT_EQ(to_[0], 7);
    EXPECT_EQ(end(ticket).code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(engine_->Wait(Start()).ok()) << "the device is as it was";
    EXPECT_EQ(to_[1], 8);
  }
}

TEST_F(CopyFailuresTest, AnErrorSaysWhetherTheDeviceIsLost) {
  const auto told_of = [&](cudaError_t error) {
    FailFakeCall(FakeCall::kCopy, error);
    return engine_->Wait(Start()).code();
  };
  EXPECT_EQ(told_of(cudaErrorMemoryAllocation), absl::StatusCode::kResourceExhausted);
  for (const cudaError_t refused :
       {cudaErrorHostMemoryNotRegistered, cudaErrorOperatingSystem, cudaErrorNotPermitted}) {
    EXPECT_EQ(told_of(refused), absl::StatusCode::kInternal) << refused;
  }
  EXPECT_EQ(told_of(cudaErrorLaunchFailure), absl::StatusCode::kUnavailable);
}

TEST_F(CopyFailuresTest, ADeviceThatIsLostMeanwhileIsToldByWhoAsks) {
  FailFakeCall(FakeCall::kEventQuery, cudaErrorLaunchFailure);
  EXPECT_EQ(engine_->Done(Start()).status().code(), absl::StatusCode::kUnavailable);
  FailFakeCall(FakeCall::kEventSynchronize, cudaErrorLaunchFailure);
  EXPECT_EQ(engine_->Wait(Start()).code(), absl::StatusCode::kUnavailable);
}

// Its ends may be given away: by the order of the compute stream, or because nobody waits any more.
TEST_F(CopyFailuresTest, AnEngineEndsWithItsCopies) {
  ASSERT_TRUE(engine_->ComputeWaits(Start()).ok());
  int last = 0;
  engine_->StartCopyIn({{&from_[1], &last, sizeof(int)}});
  engine_.reset();
  EXPECT_EQ(to_[0], 7);
  EXPECT_EQ(last, 8);
}

}  // namespace
}  // namespace stemma::testing
