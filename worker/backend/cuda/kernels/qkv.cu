#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/launch_sizes.h"
#include "worker/backend/cuda/kernels/qkv.h"
#include "worker/backend/cuda/kernels/sums.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

constexpr int kTiles = kQkvThreads / kTileLanes;
static_assert(sizeof(float) * 2 * kMaxNormedHeadSize * kTiles + sizeof(BlockScratch) <= 48 * 1024);

template <typename T, int V>
__global__ void __launch_bounds__(kQkvThreads) QkvForwardKernel(const QkvForwardArgs<T> args) {
  TileTeam team;
  QkvForward<T, V>(team, args);
}

// Eight blocks a multiprocessor: left to itself, ptxas takes registers for fewer.
template <typename T, typename G, int V>
__global__ void __launch_bounds__(kQkvThreads, 8) QkvBackwardKernel(const QkvBackwardArgs<T, G> args) {
  TileTeam team;
  QkvBackward<T, G, V, QkNorm::kNone>(team, args, nullptr);
}

// Each tile leaves sums of its own in the block's memory, and the block theirs in its row of `partials`. Of
// kQkvNormBackwardBlocks blocks no architecture spills registers.
template <typename T, typename G, int V, QkNorm kNorm>
__global__ void __launch_bounds__(kQkvThreads, 4)
    QkvNormBackwardKernel(const QkvBackwardArgs<T, G> args, float* partials) {
  extern __shared__ float4 shared[];
  __shared__ BlockScratch scratch;
  float* tiles = reinterpret_cast<float*>(shared);
  TileTeam team;
  const int64_t width = 2 * args.head_size;
  QkvBackward<T, G, V, kNorm>(team, args, tiles + team.TileOfBlock() * width);
  BlockTeam block(scratch);
  JoinTiles(block, tiles, team.TilesOfBlock(), width, partials + block.index() * width);
}

unsigned BlocksOfHeads(int64_t rows, int64_t slots) { return NumBlocks(CeilDiv(rows * slots, kTiles), kQkvBlocks); }

template <typename T, typename G, int V>
void RunQkvNormBackward(const QkvBackwardArgs<T, G>& args, unsigned blocks, float* partials, cudaStream_t stream) {
  const size_t shared_bytes = sizeof(float) * 2 * static_cast<size_t>(args.head_size) * kTiles;
  if (QkNormOf(true, args.head_size, kTileLanes, V) == QkNorm::kOnePack) {
    QkvNormBackwardKernel<T, G, V, QkNorm::kOnePack><<<blocks, kQkvThreads, shared_bytes, stream>>>(args, partials);
  } else {
    QkvNormBackwardKernel<T, G, V, QkNorm::kPacks><<<blocks, kQkvThreads, shared_bytes, stream>>>(args, partials);
  }
}

template <typename T, typename G>
cudaError_t LaunchQkvNormBackward(const QkvBackwardArgs<T, G>& args, const QkvWeightSums& sums, cudaStream_t stream) {
  const int64_t size = args.head_size;
  const auto blocks = static_cast<unsigned>(QkvBackwardBlocks(args.rows));
  if (UsesVectors(args)) {
    RunQkvNormBackward<T, G, kVector<T>>(args, blocks, sums.partials, stream);
  } else {
    RunQkvNormBackward<T, G, 1>(args, blocks, sums.partials, stream);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  const bool has_q = sums.dq_weight_E != nullptr;
  return LaunchColumnSums<float>({.partials = has_q ? sums.partials : sums.partials + size,
                                  .sums = has_q ? sums.dq_weight_E : sums.dk_weight_E,
                                  .next_sums = has_q ? sums.dk_weight_E : nullptr,
                                  .rows = blocks,
                                  .width = size,
                                  .row_stride = 2 * size},
                                 stream);
}

}  // namespace

template <typename T>
cudaError_t LaunchQkvForward(const QkvForwardArgs<T>& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const unsigned blocks = BlocksOfHeads(args.rows, args.num_heads + 2 * args.num_kv_heads);
  if (UsesVectors(args)) {
    QkvForwardKernel<T, kVector<T>><<<blocks, kQkvThreads, 0, stream>>>(args);
  } else {
    QkvForwardKernel<T, 1><<<blocks, kQkvThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

int64_t QkvBackwardBlocks(int64_t rows) {
  return NumBlocks(CeilDiv(rows, kQkvMinRowsPerBlock), kQkvNormBackwardBlocks);
}

template <typename T, typename G>
cudaError_t LaunchQkvBackward(const QkvBackwardArgs<T, G>& args, const QkvWeightSums& sums, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  if (args.k_weight_E != nullptr) return LaunchQkvNormBackward(args, sums, stream);
  const unsigned blocks = BlocksOfHeads(args.rows, args.num_heads + 2 * args.num_kv_heads);
  if (UsesVectors(args)) {
    QkvBackwardKernel<T, G, kVector<T>><<<blocks, kQkvThreads, 0, stream>>>(args);
  } else {
    QkvBackwardKernel<T, G, 1><<<blocks, kQkvThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template cudaError_t LaunchQkvForward(const QkvForwardArgs<Bf16>&, cudaStream_t);
template cudaError_t LaunchQkvForward(const QkvForwardArgs<float>&, cudaStream_t);
template cudaError_t LaunchQkvBackward(const QkvBackwardArgs<Bf16, Bf16>&, const QkvWeightSums&, cudaStream_t);
template cudaError_t LaunchQkvBackward(const QkvBackwardArgs<Bf16, float>&, const QkvWeightSums&, cudaStream_t);
template cudaError_t LaunchQkvBackward(const QkvBackwardArgs<float, float>&, const QkvWeightSums&, cudaStream_t);

}  // namespace stemma::worker::cuda
