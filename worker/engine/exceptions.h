// Where exceptions end, and become an absl::Status.
//
// None crosses Prepare, LogProb, Export, Save or loading, because the thread that calls them knows none and would end
// the worker, and with it the lineage; nor WriteCheckpointFiles, which the thread of saves calls. Our own code reports
// by absl::Status and throws nothing but CollectiveError, where a collective fails inside of a layer;
// c10::AcceleratorError, where a launch or a copy finds that the device failed; and LibTorch's c10::Error, where a copy
// between device and host fails otherwise or a library answers what it must not. Below CatchExceptions LibTorch may
// throw c10::Error and the C++ library std::bad_alloc; they unwind through our code, which leaves nothing half made
// that outlives the call: a step's gradients and a temporary folder are thrown away. Out of memory, and any other
// failure of a pass, is the request's answer. Other exceptions of libraries (std::runtime_error, or the JSON library's,
// whose throwing functions are called on checked values only) are not meant to come, and are INTERNAL.
//
// Three failures end the worker instead: an error of the device, after which the process can compute nothing more on it
// and no request is at fault, whoever meets it first: a library that does names its own call, and the device is asked,
// as it is after a call that was refused (worker/memory/cuda_error_codes.h);
// APPLY's, which may have written half of the weights; and a payload that there is no memory for, which would go on
// without its middle. So does an exception between the collectives of several ranks, outside of this.
#pragma once

#include <ATen/core/grad_mode.h>

#include "absl/status/status.h"

namespace stemma::worker {

// Returns what becomes of the exception that is being handled.
absl::Status StatusOfException();

template <typename Fn>
absl::Status CatchExceptions(const Fn& fn) {
  try {
    const at::NoGradGuard no_grad;
    return fn();
  } catch (...) {
    return StatusOfException();
  }
}

}  // namespace stemma::worker
