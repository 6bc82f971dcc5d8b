// Threads of a launch's blocks, and how many blocks it has at most for each multiprocessor.
//
// Private to worker/backend/cuda/kernels and to the test that holds the self-check's cases against them: which cases
// have more work than one launch's grid, whose blocks then take items in turns. Free of CUDA.
#pragma once

#include <cstdint>

namespace stemma::worker::cuda {

// A row a block; a team of the backward has at least so many rows, so that its sums of dweight are little beside what
// it reads.
inline constexpr int kNormThreads = 512;
inline constexpr int64_t kNormBlocks = 16, kNormBackwardBlocks = 4, kNormMinRowsPerTeam = 8;

// A tile of a row a block.
inline constexpr int kSwigluThreads = 256;
inline constexpr int64_t kSwigluBlocks = 32;
inline constexpr int kEmbeddingThreads = 128;
inline constexpr int64_t kEmbeddingBlocks = 64;

// A row of a head a tile of a warp. Blocks of the backward with QK-norm keep sums of its weights each: at least so many
// rows a block, and no more blocks than run at once.
inline constexpr int kQkvThreads = 128;
inline constexpr int64_t kQkvBlocks = 64, kQkvNormBackwardBlocks = 4, kQkvMinRowsPerBlock = 8;
inline constexpr int kMergeThreads = 128;
inline constexpr int64_t kMergeBlocks = 64;

// A row a block, tile by tile.
inline constexpr int kHeadThreads = 512;
inline constexpr int64_t kHeadBlocks = 16;

// So many elements a block, in tiles.
inline constexpr int kReductionThreads = 256;
inline constexpr int64_t kReductionBlocks = 16, kElementsPerTeam = 16384;

}  // namespace stemma::worker::cuda
