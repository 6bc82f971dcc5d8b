// A device that is not the host, on machines that have none: LibTorch's PrivateUse1 over host memory.
//
// Code that forgets which device it runs on works by chance on a CPU. Here it does not: an op that is given a CPU
// tensor (of one dimension or more) beside a device tensor throws c10::Error, memory of the device can be touched by
// ops only (outside of them its pages are closed: a pointer that is followed on the host ends the process by SIGSEGV),
// and every wait for the device is counted. Ops run on the CPU behind it, one by one, with the CPU's results.
#pragma once

#include <cstdint>
#include <string>

#include "tests/testing/namespaces.h"
#include "worker/backend/backend.h"

namespace stemma::testing {

// The composed backend on the fake device, with what the layout of a CUDA device asks of the engine: queries by token,
// gradients of logits in the run dtype, rows of logits at a distance of 8 elements with NaN between, large slabs of
// optimizer states. Its copies are late: they run when the computation is told to wait for them.
Backend MakeFakeDeviceBackend();

// The device's memory is open while one lives: for what stands for the device in tests.
class OpenFakeMemory {
 public:
  OpenFakeMemory();
  ~OpenFakeMemory();
  OpenFakeMemory(const OpenFakeMemory&) = delete;
  OpenFakeMemory& operator=(const OpenFakeMemory&) = delete;
};

// The device answers what it is asked with an error, these words, while one lives.
class FailedFakeDevice {
 public:
  explicit FailedFakeDevice(std::string words);
  ~FailedFakeDevice();
  FailedFakeDevice(const FailedFakeDevice&) = delete;
  FailedFakeDevice& operator=(const FailedFakeDevice&) = delete;
};

// Waits of the host for the device since the process began: numbers read (`item`) and copies to the host.
int64_t NumSynchronizations();

}  // namespace stemma::testing
