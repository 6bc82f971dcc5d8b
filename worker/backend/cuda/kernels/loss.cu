#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/launch_loss.h"
#include "worker/backend/cuda/kernels/loss.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

// So many blocks run at once: one more would run alone behind them.
constexpr int kThreads = 128, kBlocksPerProcessor = 9;

__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor) LossKernel(const LossArgs args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  Loss(team, args);
}

__global__ void __launch_bounds__(kThreads) SequenceLogRatiosKernel(const SequenceLogRatiosArgs args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  SequenceLogRatios(team, args);
}

}  // namespace

int64_t LossTeams(int64_t rows) { return NumBlocks(CeilDiv(rows, kThreads), kBlocksPerProcessor); }

cudaError_t LaunchLoss(const LossArgs& args, double* sums, cudaStream_t stream) {
  if (args.rows.count == 0) return cudaSuccess;
  const int64_t blocks = LossTeams(args.rows.count);
  LossKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  return LaunchColumnSums<double>({.partials = args.partials,
                                   .sums = sums,
                                   .next_sums = nullptr,
                                   .rows = blocks,
                                   .width = kNumLossRowSums,
                                   .row_stride = kNumLossRowSums},
                                  stream);
}

cudaError_t LaunchSequenceLogRatios(const SequenceLogRatiosArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  SequenceLogRatiosKernel<<<NumBlocks(args.rows, 4), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace stemma::worker::cuda
