#include "worker/backend/cuda/kernels/finite.h"
#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/launch_sizes.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

template <typename T, int V>
__global__ void __launch_bounds__(kReductionThreads) FindNonfiniteKernel(const FirstNonfiniteArgs<T> args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  FindNonfinite<T, V>(team, args);
}

__global__ void __launch_bounds__(kReductionThreads)
    FirstOfPartialsKernel(const int64_t* partials, int64_t num_partials, int64_t count, int64_t* first) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  FirstOfPartials(team, partials, num_partials, count, first);
}

}  // namespace

int64_t FirstNonfiniteTeams(int64_t count) { return NumBlocks(CeilDiv(count, kElementsPerTeam), kReductionBlocks); }

template <typename T>
cudaError_t LaunchFirstNonfinite(const FirstNonfiniteArgs<T>& args, int64_t* first, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(FirstNonfiniteTeams(args.count));
  if (UsesVectors(args)) {
    FindNonfiniteKernel<T, kVector<T>><<<blocks, kReductionThreads, 0, stream>>>(args);
  } else {
    FindNonfiniteKernel<T, 1><<<blocks, kReductionThreads, 0, stream>>>(args);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  FirstOfPartialsKernel<<<1, kReductionThreads, 0, stream>>>(args.partials, blocks, args.count, first);
  return cudaGetLastError();
}

template cudaError_t LaunchFirstNonfinite(const FirstNonfiniteArgs<Bf16>&, int64_t*, cudaStream_t);
template cudaError_t LaunchFirstNonfinite(const FirstNonfiniteArgs<float>&, int64_t*, cudaStream_t);

}  // namespace stemma::worker::cuda
