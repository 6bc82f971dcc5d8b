#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/team.h"
#include "worker/backend/cuda/kernels/word_sum.h"

namespace stemma::worker::cuda {
namespace {

// So many blocks run at once.
constexpr int kThreads = 256, kBlocksPerProcessor = 2;

template <typename T, int V>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor) SumWordsKernel(const WordSumArgs<T> args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  SumWords<T, V>(team, args);
}

__global__ void __launch_bounds__(kThreads)
    SumOfPartialsKernel(const int64_t* partials, int64_t num_partials, int64_t* sum) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  SumOfPartials(team, partials, num_partials, sum);
}

}  // namespace

// A thread reads some packs at least.
int64_t WordSumTeams(int64_t count) {
  return NumBlocks(CeilDiv(count, int64_t{kThreads} * kVector<Bf16> * kRowsAtOnce), kBlocksPerProcessor);
}

template <typename T>
cudaError_t LaunchWordSum(const WordSumArgs<T>& args, int64_t* sum, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(WordSumTeams(args.count));
  if (UsesVectors(args)) {
    SumWordsKernel<T, kVector<T>><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    SumWordsKernel<T, 1><<<blocks, kThreads, 0, stream>>>(args);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  SumOfPartialsKernel<<<1, kThreads, 0, stream>>>(args.partials, blocks, sum);
  return cudaGetLastError();
}

template cudaError_t LaunchWordSum(const WordSumArgs<Bf16>&, int64_t*, cudaStream_t);
template cudaError_t LaunchWordSum(const WordSumArgs<float>&, int64_t*, cudaStream_t);

}  // namespace stemma::worker::cuda
