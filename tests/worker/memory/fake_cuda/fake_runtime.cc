#include "tests/worker/memory/fake_cuda/fake_runtime.h"

#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace stemma::testing {
namespace {

// One piece of a stream's work. A stream's head runs when the events before it have come as far as they had to.
struct Piece {
  std::function<void()> run;
  cudaEvent_t waits_for = nullptr;
  int64_t record = 0;  // which of its records
};

struct Event {
  int64_t recorded = 0, reached = 0;  // records that were queued, and that have run
};

struct Failure {
  FakeCall call;
  cudaError_t error;
  int64_t after;
};

struct Runtime {
  std::mt19937 random;
  FakeFault fault = FakeFault::kNone;
  std::map<cudaStream_t, std::deque<Piece>> streams;
  std::map<cudaEvent_t, Event> events;
  cudaStream_t compute = nullptr;
  int64_t misuses = 0;
  cudaError_t last_error = cudaSuccess;  // also of an event that was not reached; CUDA keeps it as any other
  std::optional<Failure> failure;
  uintptr_t next_handle = 1;
};

Runtime runtime;

// Returns what the call fails with.
cudaError_t FailureOf(FakeCall call) {
  if (!runtime.failure || runtime.failure->call != call || runtime.failure->after-- > 0) return cudaSuccess;
  return runtime.last_error = std::exchange(runtime.failure, std::nullopt)->error;
}

template <typename Handle>
Handle NewHandle() {
  return reinterpret_cast<Handle>(runtime.next_handle++ * 64);
}

std::deque<Piece>* FindStream(cudaStream_t stream) {
  const auto found = runtime.streams.find(stream);
  if (found != runtime.streams.end()) return &found->second;
  ++runtime.misuses;
  return nullptr;
}

Event* FindEvent(cudaEvent_t event) {
  const auto found = runtime.events.find(event);
  if (found != runtime.events.end()) return &found->second;
  ++runtime.misuses;
  return nullptr;
}

bool IsReady(const Piece& piece) {
  if (piece.waits_for == nullptr) return true;
  const auto event = runtime.events.find(piece.waits_for);
  return event == runtime.events.end() || event->second.reached >= piece.record;
}

// Runs the head of a drawn stream. False: every stream is empty, or waits.
bool RunOne() {
  std::vector<std::deque<Piece>*> ready;
  for (auto& [stream, pieces] : runtime.streams) {
    if (!pieces.empty() && IsReady(pieces.front())) ready.push_back(&pieces);
  }
  if (ready.empty()) return false;
  std::deque<Piece>& pieces = *ready[runtime.random() % ready.size()];
  const Piece piece = std::move(pieces.front());
  pieces.pop_front();
  if (piece.run) piece.run();
  return true;
}

bool WaitsAreIgnored(cudaStream_t stream) {
  const bool compute = stream == runtime.compute;
  return runtime.fault == (compute ? FakeFault::kComputeWaitsForNothing : FakeFault::kCopiesWaitForNothing);
}

}  // namespace

void StartFakeRuntime(uint32_t seed, FakeFault fault) {
  runtime = Runtime{};
  runtime.random.seed(seed);
  runtime.fault = fault;
  runtime.compute = NewHandle<cudaStream_t>();
  runtime.streams[runtime.compute];
}

cudaStream_t FakeComputeStream() { return runtime.compute; }

void FailFakeCall(FakeCall call, cudaError_t error, int64_t after) { runtime.failure = {call, error, after}; }

void FakeLaunch(std::function<void()> work) { runtime.streams[runtime.compute].push_back({.run = std::move(work)}); }

void RunSome() {
  for (uint32_t pieces = runtime.random() % 5; pieces > 0; --pieces) RunOne();
}

void RunAll() {
  while (RunOne()) {
  }
}

int64_t FakeRuntimeMisuses() { return runtime.misuses; }

int64_t FakeRuntimeObjects() {
  return static_cast<int64_t>(runtime.events.size() + runtime.streams.size()) - 1;  // the compute stream is the test's
}

}  // namespace stemma::testing

using stemma::testing::FakeCall;
using stemma::testing::runtime;

extern "C" {

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorInvalidValue"; }
const char* cudaGetErrorString(cudaError_t) { return "invalid argument"; }
cudaError_t cudaGetLastError() { return std::exchange(stemma::testing::runtime.last_error, cudaSuccess); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  *stream = stemma::testing::NewHandle<cudaStream_t>();
  runtime.streams[*stream];
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const auto* pieces = stemma::testing::FindStream(stream);
  if (pieces == nullptr) return cudaErrorInvalidValue;
  if (!pieces->empty()) ++runtime.misuses;
  runtime.streams.erase(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto* pieces = stemma::testing::FindStream(stream);
  if (pieces == nullptr) return cudaErrorInvalidValue;
  while (!pieces->empty()) {
    if (!stemma::testing::RunOne()) return cudaErrorInvalidValue;  // it would never end
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int /*flags*/) {
  *event = stemma::testing::NewHandle<cudaEvent_t>();
  runtime.events[*event];
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const auto* found = stemma::testing::FindEvent(event);
  if (found == nullptr) return cudaErrorInvalidValue;
  runtime.events.erase(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto* found = stemma::testing::FindEvent(event);
  auto* pieces = stemma::testing::FindStream(stream);
  if (found == nullptr || pieces == nullptr) return cudaErrorInvalidValue;
  const int64_t record = ++found->recorded;
  pieces->push_back({.run = [event, record] {
    const auto reached = runtime.events.find(event);
    if (reached != runtime.events.end()) reached->second.reached = record;
  }});
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  auto* found = stemma::testing::FindEvent(event);
  auto* pieces = stemma::testing::FindStream(stream);
  if (found == nullptr || pieces == nullptr) return cudaErrorInvalidValue;
  if (stemma::testing::WaitsAreIgnored(stream)) return cudaSuccess;
  pieces->push_back({.run = nullptr, .waits_for = event, .record = found->recorded});
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto* found = stemma::testing::FindEvent(event);
  if (found == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = stemma::testing::FailureOf(FakeCall::kEventQuery); error != cudaSuccess) return error;
  stemma::testing::RunSome();
  if (found->reached == found->recorded) return cudaSuccess;
  return stemma::testing::runtime.last_error = cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const auto* found = stemma::testing::FindEvent(event);
  if (found == nullptr) return cudaErrorInvalidValue;
  const cudaError_t error = stemma::testing::FailureOf(FakeCall::kEventSynchronize);
  if (error != cudaSuccess) return error;
  while (found->reached < found->recorded) {
    if (!stemma::testing::RunOne()) return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t count, cudaMemcpyKind /*kind*/, cudaStream_t stream) {
  auto* pieces = stemma::testing::FindStream(stream);
  if (pieces == nullptr || ((to == nullptr || from == nullptr) && count > 0)) return cudaErrorInvalidValue;
  if (const cudaError_t error = stemma::testing::FailureOf(FakeCall::kCopy); error != cudaSuccess) return error;
  pieces->push_back({.run = [to, from, count] { std::memcpy(to, from, count); }});
  return cudaSuccess;
}

}  // extern "C"
