#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/launch_sizes.h"
#include "worker/backend/cuda/kernels/team.h"
#include "worker/backend/cuda/kernels/vector_norm.h"

namespace stemma::worker::cuda {
namespace {

template <typename T, int V>
__global__ void __launch_bounds__(kReductionThreads) SumSquaresKernel(const VectorNormArgs<T> args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  SumSquares<T, V>(team, args);
}

__global__ void __launch_bounds__(kReductionThreads)
    NormOfPartialsKernel(const double* partials, int64_t num_partials, double* norm) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  NormOfPartials(team, partials, num_partials, norm);
}

}  // namespace

int64_t VectorNormTeams(int64_t count) { return NumBlocks(CeilDiv(count, kElementsPerTeam), kReductionBlocks); }

template <typename T>
cudaError_t LaunchVectorNorm(const VectorNormArgs<T>& args, double* norm, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(VectorNormTeams(args.count));
  if (UsesVectors(args)) {
    SumSquaresKernel<T, kVector<T>><<<blocks, kReductionThreads, 0, stream>>>(args);
  } else {
    SumSquaresKernel<T, 1><<<blocks, kReductionThreads, 0, stream>>>(args);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  NormOfPartialsKernel<<<1, kReductionThreads, 0, stream>>>(args.partials, blocks, norm);
  return cudaGetLastError();
}

template cudaError_t LaunchVectorNorm(const VectorNormArgs<Bf16>&, double*, cudaStream_t);
template cudaError_t LaunchVectorNorm(const VectorNormArgs<float>&, double*, cudaStream_t);

}  // namespace stemma::worker::cuda
