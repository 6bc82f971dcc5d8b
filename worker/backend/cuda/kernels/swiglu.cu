#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/launch_sizes.h"
#include "worker/backend/cuda/kernels/swiglu.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

template <typename T, int V>
__global__ void __launch_bounds__(kSwigluThreads) SwigluForwardKernel(const SwigluForwardArgs<T> args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  SwigluForward<T, V>(team, args);
}

template <typename T, int V>
__global__ void __launch_bounds__(kSwigluThreads) SwigluBackwardKernel(const SwigluBackwardArgs<T> args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  SwigluBackward<T, V>(team, args);
}

template <int V>
unsigned Blocks(int64_t rows, int64_t width) {
  return NumBlocks(rows * CeilDiv(width, static_cast<int64_t>(kSwigluThreads) * V * kPacksPerTile), kSwigluBlocks);
}

}  // namespace

template <typename T>
cudaError_t LaunchSwigluForward(const SwigluForwardArgs<T>& args, cudaStream_t stream) {
  constexpr int V = kVector<T>;
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  if (UsesVectors(args)) {
    SwigluForwardKernel<T, V><<<Blocks<V>(args.rows, args.width), kSwigluThreads, 0, stream>>>(args);
  } else {
    SwigluForwardKernel<T, 1><<<Blocks<1>(args.rows, args.width), kSwigluThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchSwigluBackward(const SwigluBackwardArgs<T>& args, cudaStream_t stream) {
  constexpr int V = kVector<T>;
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  if (UsesVectors(args)) {
    SwigluBackwardKernel<T, V><<<Blocks<V>(args.rows, args.width), kSwigluThreads, 0, stream>>>(args);
  } else {
    SwigluBackwardKernel<T, 1><<<Blocks<1>(args.rows, args.width), kSwigluThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template cudaError_t LaunchSwigluForward(const SwigluForwardArgs<Bf16>&, cudaStream_t);
template cudaError_t LaunchSwigluForward(const SwigluForwardArgs<float>&, cudaStream_t);
template cudaError_t LaunchSwigluBackward(const SwigluBackwardArgs<Bf16>&, cudaStream_t);
template cudaError_t LaunchSwigluBackward(const SwigluBackwardArgs<float>&, cudaStream_t);

}  // namespace stemma::worker::cuda
