#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/launch_sizes.h"
#include "worker/backend/cuda/kernels/merge.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

constexpr int kTiles = kMergeThreads / kTileLanes;

template <typename T, int V>
__global__ void __launch_bounds__(kMergeThreads) MergeKernel(const MergeArgs<T> args) {
  TileTeam team;
  Merge<T, V>(team, args);
}

template <typename T, int V>
__global__ void __launch_bounds__(kMergeThreads) AddPartsKernel(const AddPartsArgs<T> args) {
  TileTeam team;
  AddParts<T, V>(team, args);
}

template <typename Args>
unsigned Blocks(const Args& args) {
  return NumBlocks(CeilDiv(args.rows * args.num_heads, kTiles), kMergeBlocks);
}

}  // namespace

template <typename T>
cudaError_t LaunchMerge(const MergeArgs<T>& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (UsesVectors(args)) {
    MergeKernel<T, kVector<T>><<<Blocks(args), kMergeThreads, 0, stream>>>(args);
  } else {
    MergeKernel<T, 1><<<Blocks(args), kMergeThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchAddParts(const AddPartsArgs<T>& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (UsesVectors(args)) {
    AddPartsKernel<T, kVector<T>><<<Blocks(args), kMergeThreads, 0, stream>>>(args);
  } else {
    AddPartsKernel<T, 1><<<Blocks(args), kMergeThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template cudaError_t LaunchMerge(const MergeArgs<Bf16>&, cudaStream_t);
template cudaError_t LaunchMerge(const MergeArgs<float>&, cudaStream_t);
template cudaError_t LaunchAddParts(const AddPartsArgs<Bf16>&, cudaStream_t);
template cudaError_t LaunchAddParts(const AddPartsArgs<float>&, cudaStream_t);

}  // namespace stemma::worker::cuda
