#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/qkv.h"
#include "worker/backend/cuda/kernels/sums.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTiles = kThreads / kTileLanes;
static_assert(sizeof(float) * 2 * kMaxNormedHeadSize * kTiles + sizeof(BlockScratch) <= 48 * 1024);
// Blocks of the backward sum QK-norm's weight gradients each: at least so many rows a block, and few blocks.
constexpr int64_t kMinRowsPerBlock = 8;
constexpr int64_t kBlocksPerProcessor = 8;

template <typename T, int V>
__global__ void __launch_bounds__(kThreads) QkvForwardKernel(const QkvForwardArgs<T> args) {
  TileTeam team;
  QkvForward<T, V>(team, args);
}

// Each tile keeps sums of its own in the block's memory, and the block leaves theirs in its row of `partials`. Five
// blocks a multiprocessor: as many as no architecture spills registers for.
template <typename T, typename G, int V>
__global__ void __launch_bounds__(kThreads, 5) QkvBackwardKernel(const QkvBackwardArgs<T, G> args, float* partials) {
  extern __shared__ float4 shared[];
  __shared__ BlockScratch scratch;
  float* tiles = reinterpret_cast<float*>(shared);
  TileTeam team;
  const int64_t width = 2 * args.head_size;
  QkvBackward<T, G, V>(team, args, tiles + team.TileOfBlock() * width);
  if (args.k_weight_E == nullptr) return;
  BlockTeam block(scratch);
  JoinTiles(block, tiles, team.TilesOfBlock(), width, partials + block.index() * width);
}

unsigned ForwardBlocks(int64_t rows, int64_t slots) { return NumBlocks(CeilDiv(rows * slots, kTiles), 64); }

}  // namespace

template <typename T>
cudaError_t LaunchQkvForward(const QkvForwardArgs<T>& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const unsigned blocks = ForwardBlocks(args.rows, args.num_heads + 2 * args.num_kv_heads);
  if (UsesVectors(args)) {
    QkvForwardKernel<T, kVector<T>><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    QkvForwardKernel<T, 1><<<blocks, kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

int64_t QkvBackwardBlocks(int64_t rows) { return NumBlocks(CeilDiv(rows, kMinRowsPerBlock), kBlocksPerProcessor); }

template <typename T, typename G>
cudaError_t LaunchQkvBackward(const QkvBackwardArgs<T, G>& args, const QkvWeightSums& sums, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const bool norm = args.k_weight_E != nullptr;
  const int64_t size = args.head_size;
  const unsigned blocks = norm ? static_cast<unsigned>(QkvBackwardBlocks(args.rows))
                               : ForwardBlocks(args.rows, args.num_heads + 2 * args.num_kv_heads);
  const size_t shared_bytes = norm ? sizeof(float) * 2 * static_cast<size_t>(size) * kTiles : 0;
  if (UsesVectors(args)) {
    QkvBackwardKernel<T, G, kVector<T>><<<blocks, kThreads, shared_bytes, stream>>>(args, sums.partials);
  } else {
    QkvBackwardKernel<T, G, 1><<<blocks, kThreads, shared_bytes, stream>>>(args, sums.partials);
  }
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess || !norm) return error;
  if (sums.dq_weight_E != nullptr) {
    error = LaunchColumnSums<float>({sums.partials, sums.dq_weight_E, blocks, size, 2 * size}, stream);
    if (error != cudaSuccess) return error;
  }
  return LaunchColumnSums<float>({sums.partials + size, sums.dk_weight_E, blocks, size, 2 * size}, stream);
}

template cudaError_t LaunchQkvForward(const QkvForwardArgs<Bf16>&, cudaStream_t);
template cudaError_t LaunchQkvForward(const QkvForwardArgs<float>&, cudaStream_t);
template cudaError_t LaunchQkvBackward(const QkvBackwardArgs<Bf16, Bf16>&, const QkvWeightSums&, cudaStream_t);
template cudaError_t LaunchQkvBackward(const QkvBackwardArgs<Bf16, float>&, const QkvWeightSums&, cudaStream_t);
template cudaError_t LaunchQkvBackward(const QkvBackwardArgs<float, float>&, const QkvWeightSums&, cudaStream_t);

}  // namespace stemma::worker::cuda
