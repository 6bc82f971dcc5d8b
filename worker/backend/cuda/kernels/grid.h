// Grids of launches. Private to the .cu files of this folder.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace stemma::worker::cuda {

// Multiprocessors of the current device.
inline int64_t NumProcessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 1;  // the launch that follows says what is wrong
  }
  return count;
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks for so many items of work, one or more each; at most `per_processor` of them for each multiprocessor.
inline unsigned NumBlocks(int64_t items, int64_t per_processor) {
  return static_cast<unsigned>(std::clamp<int64_t>(items, 1, NumProcessors() * per_processor));
}

// Threads of a team whose row has this many packs: whole warps, at most `most`.
inline unsigned NumThreads(int64_t packs, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>(CeilDiv(packs, 32) * 32, 32, most));
}

}  // namespace stemma::worker::cuda
