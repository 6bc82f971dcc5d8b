// A stand-in for CUDA's runtime where no device is: the calls that the copy engine makes, over streams that are queues
// in this process. Linked in place of the runtime's library.
//
// Nothing runs when it is queued. Work runs one piece at a time, in an order that is drawn, whenever the host asks or
// waits: any stream's next piece may come first, unless an event holds it back. So what a device may do, happens; and
// what is ordered by luck only, comes out wrong for some seed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace stemma::testing {

// Wrong devices, for the negative controls.
enum class FakeFault {
  kNone,
  kComputeWaitsForNothing,  // the compute stream does not wait for events
  kCopiesWaitForNothing,    // the other streams do not
};

// Forgets all streams, and draws anew. `compute` is the stream that stands for the computation.
void StartFakeRuntime(uint32_t seed, FakeFault fault = FakeFault::kNone);
cudaStream_t FakeComputeStream();

// The calls that a device may be made to refuse.
enum class FakeCall { kCopy, kEventQuery, kEventSynchronize };
// Lets a call fail once, after so many of its kind that do not.
void FailFakeCall(FakeCall call, cudaError_t error, int64_t after = 0);

// Queues work of the computation.
void FakeLaunch(std::function<void()> work);
// Runs pieces of work for a while, or all of it.
void RunSome();
void RunAll();

// Calls that failed to find what they were given, streams and events that were destroyed in use: none in a right
// engine.
int64_t FakeRuntimeMisuses();
// Events and streams that were made and not destroyed.
int64_t FakeRuntimeObjects();

}  // namespace stemma::testing
