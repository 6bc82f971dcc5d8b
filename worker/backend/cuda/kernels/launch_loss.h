// Launches of the loss of rows; as launch.h, beside it because its rows' formulas read headers that are slow to
// compile.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/backend/cuda/kernels/loss.h"

namespace stemma::worker::cuda {

// Rows of LossArgs::partials.
int64_t LossTeams(int64_t rows);
// Adds to sums, kNumLossRowSums of them, through args.partials.
cudaError_t LaunchLoss(const LossArgs& args, double* sums, cudaStream_t stream);
cudaError_t LaunchSequenceLogRatios(const SequenceLogRatiosArgs& args, cudaStream_t stream);

}  // namespace stemma::worker::cuda
