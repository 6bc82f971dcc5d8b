// A team: the threads that work on one row together. Kernel bodies are templates over it, so that one source runs as
// threads of a device, and on the host as lanes of tests (tests/worker/backend/cuda/kernels/host_team.h).
//
//   size(), rank()     the threads of a team, and which of them this is
//   index(), count()   which team this is, and how many share the work: teams take rows index(), index() + count(), ...
//   Sync()             all threads have come here, and see what each wrote to memory before it
//   Sum(x), Max(x)     the same bits on every thread, in an order that only size() decides: Max passes over
//                      NaN where any other number comes first
//   Broadcast(x, r)    what thread r gave
//
// All threads of a team call Sync, Sum, Max and Broadcast alike. Tiles of a block are independent of each other; a body
// that joins them takes a BlockTeam.
#pragma once

#include <cstdint>

#include "worker/backend/device_code.h"

namespace stemma::worker::cuda {

// Lanes of a tile: a quarter of a warp, so that the two halves of a head of 128 bf16 are one 16-byte access of a lane
// each.
inline constexpr int kTileLanes = 8;

#if defined(__CUDACC__)

// A part of a warp.
class TileTeam {
 public:
  STEMMA_DEVICE int size() const { return kTileLanes; }
  STEMMA_DEVICE int rank() const { return static_cast<int>(threadIdx.x) % kTileLanes; }
  STEMMA_DEVICE int64_t index() const { return static_cast<int64_t>(blockIdx.x) * TilesOfBlock() + TileOfBlock(); }
  STEMMA_DEVICE int64_t count() const { return static_cast<int64_t>(gridDim.x) * TilesOfBlock(); }
  STEMMA_DEVICE int TileOfBlock() const { return static_cast<int>(threadIdx.x) / kTileLanes; }
  STEMMA_DEVICE int TilesOfBlock() const { return static_cast<int>(blockDim.x) / kTileLanes; }

  STEMMA_DEVICE void Sync() { __syncwarp(Mask()); }
  template <typename A>
  STEMMA_DEVICE A Sum(A x) {
    STEMMA_UNROLL
    for (int apart = kTileLanes / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(Mask(), x, apart);
    return x;
  }
  template <typename A>
  STEMMA_DEVICE A Max(A x) {
    STEMMA_UNROLL
    for (int apart = kTileLanes / 2; apart > 0; apart /= 2) {
      const A other = __shfl_xor_sync(Mask(), x, apart);
      x = other > x ? other : x;
    }
    return x;
  }
  template <typename A>
  STEMMA_DEVICE A Broadcast(A x, int rank) {
    return __shfl_sync(Mask(), x, rank, kTileLanes);
  }

 private:
  STEMMA_DEVICE unsigned Mask() const {
    const unsigned first_lane = threadIdx.x % 32 / kTileLanes * kTileLanes;
    return ((1u << kTileLanes) - 1) << first_lane;
  }
};

// The memory that a BlockTeam's sums pass through. Two halves take turns, so that one barrier per sum is enough: who
// writes a half again has passed the barrier of the sum between, behind which nobody reads it any more.
struct BlockScratch {
  double warps[2][32];
};

// A whole block; its threads are a multiple of 32.
class BlockTeam {
 public:
  STEMMA_DEVICE explicit BlockTeam(BlockScratch& scratch) : scratch_(scratch) {}
  STEMMA_DEVICE int size() const { return static_cast<int>(blockDim.x); }
  STEMMA_DEVICE int rank() const { return static_cast<int>(threadIdx.x); }
  STEMMA_DEVICE int64_t index() const { return blockIdx.x; }
  STEMMA_DEVICE int64_t count() const { return gridDim.x; }

  STEMMA_DEVICE void Sync() { __syncthreads(); }
  template <typename A>
  STEMMA_DEVICE A Sum(A x) {
    return Reduce(x, A(0), [](A a, A b) { return a + b; });
  }
  template <typename A>
  STEMMA_DEVICE A Max(A x) {
    return Reduce(x, x, [](A a, A b) { return b > a ? b : a; });
  }
  template <typename A>
  STEMMA_DEVICE A Broadcast(A x, int rank) {
    A* half = Half<A>();
    if (this->rank() == rank) half[0] = x;
    __syncthreads();
    return half[0];
  }

 private:
  // `neutral` stands in for warps that the block has not.
  template <typename A, typename F>
  STEMMA_DEVICE A Reduce(A x, A neutral, const F& join) {
    A* half = Half<A>();
    x = ReduceWarp(x, join);
    const int lane = rank() % 32, warps = size() / 32;
    if (lane == 0) half[rank() / 32] = x;
    __syncthreads();
    if (warps == 1) return x;
    return ReduceWarp(lane < warps ? half[lane] : neutral, join);
  }
  template <typename A, typename F>
  STEMMA_DEVICE static A ReduceWarp(A x, const F& join) {
    STEMMA_UNROLL
    for (int apart = 16; apart > 0; apart /= 2) x = join(x, __shfl_xor_sync(~0u, x, apart));
    return x;
  }
  template <typename A>
  STEMMA_DEVICE A* Half() {
    static_assert(sizeof(A) <= sizeof(double));
    turn_ ^= 1;
    return reinterpret_cast<A*>(scratch_.warps[turn_]);
  }

  BlockScratch& scratch_;
  int turn_ = 0;
};

#endif

}  // namespace stemma::worker::cuda
