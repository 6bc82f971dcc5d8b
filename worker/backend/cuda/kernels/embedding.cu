#include "worker/backend/cuda/kernels/embedding.h"
#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/launch_sizes.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

// Eight blocks a multiprocessor: left to itself, ptxas spills registers on one architecture to have more.
template <typename T, int V>
__global__ void __launch_bounds__(kEmbeddingThreads, 8) EmbeddingBackwardKernel(const EmbeddingBackwardArgs<T> args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  EmbeddingBackward<T, V>(team, args);
}

template <int V>
unsigned Blocks(int64_t rows, int64_t width) {
  return NumBlocks(rows * CeilDiv(width, static_cast<int64_t>(kEmbeddingThreads) * V * kPacksPerTile),
                   kEmbeddingBlocks);
}

}  // namespace

template <typename T>
cudaError_t LaunchEmbeddingBackward(const EmbeddingBackwardArgs<T>& args, cudaStream_t stream) {
  constexpr int V = kVector<T>;
  if (args.rows == 0 || args.width == 0) return cudaSuccess;
  if (UsesVectors(args)) {
    EmbeddingBackwardKernel<T, V><<<Blocks<V>(args.rows, args.width), kEmbeddingThreads, 0, stream>>>(args);
  } else {
    EmbeddingBackwardKernel<T, 1><<<Blocks<1>(args.rows, args.width), kEmbeddingThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template cudaError_t LaunchEmbeddingBackward(const EmbeddingBackwardArgs<Bf16>&, cudaStream_t);
template cudaError_t LaunchEmbeddingBackward(const EmbeddingBackwardArgs<float>&, cudaStream_t);

}  // namespace stemma::worker::cuda
