// The CUDA kernels' bodies on the host, as tables of kernels over CPU tensors.
#pragma once

#include "tests/testing/namespaces.h"
#include "tests/worker/backend/cuda/kernels/host_team.h"
#include "worker/backend/cuda/attention/attention_kernels.h"
#include "worker/backend/kernels.h"

namespace stemma::testing {

// How bodies run, and what a control breaks in them.
enum class Fault {
  kNone,
  kNoSums,           // a team's sums are 0: terms that hold a mean over a row are dropped
  kOwnSums,          // a lane takes its own sum for the team's
  kOwnMax,           // a lane takes its own maximum for the team's
  kNoBarriers,       // the barriers of bodies do nothing
  kLastTeamMissing,  // partial sums of the last team are left out
};
struct HostRun {
  TeamShape shape;
  Fault fault = Fault::kNone;
};

// Tables that run as said here, until the next call.
Kernels HostKernels(const HostRun& run);
worker::cuda::AttentionKernels HostAttentionKernels(const HostRun& run);

// Whether the last body ran in packs of 16 bytes.
bool LastBodyUsedVectors();

}  // namespace stemma::testing
