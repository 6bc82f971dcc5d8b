// Device: what a worker computes on. Opened once, when the process starts; makes the backend of a run, and what
// connects such devices to each other.
//
// The CPU's is in worker/engine/open_device.cc. A CUDA device's is in a library of its own, libstemma_cuda.so, so that
// one worker binary serves machines with and without CUDA: worker/engine/open_device.h loads it.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/memory/device_memory.h"

namespace stemma::worker {

class Transport;

// The hardware, and the versions of all that computes on it.
struct DeviceIdentity {
  std::string name = {};                // "NVIDIA H200"; empty: a CPU
  std::string compute_capability = {};  // "9.0"
  std::string driver = {}, runtime = {}, torch = {}, cublas = {}, cudnn = {};
  std::string build_id = {};  // of the library that brings the kernels
};

// The run that a backend is for.
struct BackendRequest {
  at::ScalarType run_dtype = at::kFloat;
  int64_t num_heads = 0, num_kv_heads = 0, head_size = 0;  // of this rank
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceIdentity identity() const = 0;
  // Returns what tells this piece of hardware from every other, of this host or not; empty: nothing does, as a CPU's.
  virtual std::string id() const { return ""; }
  virtual DeviceMemory memory() const = 0;
  // Makes the backend, and the calling thread the one that computes: all later work is this thread's. Kernels that were
  // not tried on this device are still to be checked (worker/backend/self_check). Throws what LibTorch throws.
  virtual Backend MakeBackend(const BackendRequest& request) const = 0;
  // Returns what carries tensors between devices of this kind.
  virtual absl::StatusOr<std::shared_ptr<const Transport>> MakeTransport() const = 0;
};

// The one function that a device's library has, by this name. Worker and library share classes, so they are built from
// the same headers: each has the digest of those as STEMMA_DEVICE_BUILD (worker/CMakeLists.txt).
inline constexpr char kOpenDeviceSymbol[] = "StemmaOpenDevice";
// build: the worker's digest; another is refused. index: which device of this host that the process sees. Returns null
// with a `failure` in plain words, FailedPrecondition for what an operator must change.
using OpenDeviceFunction = Device*(const char* build, int index, absl::Status& failure);

}  // namespace stemma::worker
