#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/launch_sizes.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

// Two blocks a multiprocessor: left to itself, ptxas spills registers on one architecture to have more.
template <typename T, int V>
__global__ void __launch_bounds__(kNormThreads, 2) RmsNormForwardKernel(const RmsNormForwardArgs<T> args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  RmsNormForward<T, V>(team, args);
}

template <typename T, int V>
__global__ void __launch_bounds__(kNormThreads) RmsNormBackwardKernel(const RmsNormBackwardArgs<T> args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  RmsNormBackward<T, V>(team, args);
}

template <int V>
unsigned Threads(int64_t width) {
  return NumThreads(CeilDiv(width, V * kHeldPacks), kNormThreads);
}

}  // namespace

template <typename T>
cudaError_t LaunchRmsNormForward(const RmsNormForwardArgs<T>& args, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  const unsigned blocks = NumBlocks(args.rows, kNormBlocks);
  if (UsesVectors(args)) {
    RmsNormForwardKernel<T, kVector<T>><<<blocks, Threads<kVector<T>>(args.width), 0, stream>>>(args);
  } else {
    RmsNormForwardKernel<T, 1><<<blocks, Threads<1>(args.width), 0, stream>>>(args);
  }
  return cudaGetLastError();
}

int64_t RmsNormBackwardTeams(int64_t rows) {
  return NumBlocks(CeilDiv(rows, kNormMinRowsPerTeam), kNormBackwardBlocks);
}

template <typename T>
cudaError_t LaunchRmsNormBackward(const RmsNormBackwardArgs<T>& args, float* dweight_D, cudaStream_t stream) {
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(RmsNormBackwardTeams(args.rows));
  if (UsesVectors(args)) {
    RmsNormBackwardKernel<T, kVector<T>><<<blocks, Threads<kVector<T>>(args.width), 0, stream>>>(args);
  } else {
    RmsNormBackwardKernel<T, 1><<<blocks, Threads<1>(args.width), 0, stream>>>(args);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  return LaunchColumnSums<float>({.partials = args.partials,
                                  .sums = dweight_D,
                                  .next_sums = nullptr,
                                  .rows = blocks,
                                  .width = args.width,
                                  .row_stride = args.width},
                                 stream);
}

template cudaError_t LaunchRmsNormForward(const RmsNormForwardArgs<Bf16>&, cudaStream_t);
template cudaError_t LaunchRmsNormForward(const RmsNormForwardArgs<float>&, cudaStream_t);
template cudaError_t LaunchRmsNormBackward(const RmsNormBackwardArgs<Bf16>&, float*, cudaStream_t);
template cudaError_t LaunchRmsNormBackward(const RmsNormBackwardArgs<float>&, float*, cudaStream_t);

}  // namespace stemma::worker::cuda
