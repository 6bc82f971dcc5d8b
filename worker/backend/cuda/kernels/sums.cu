#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/sums.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

constexpr int kThreads = 1024;

template <typename A>
__global__ void __launch_bounds__(kThreads) ColumnSumsKernel(const ColumnSumsArgs<A> args) {
  __shared__ BlockScratch scratch;
  __shared__ A shared[kThreads];
  BlockTeam team(scratch);
  AddColumnSums(team, args, shared);
}

}  // namespace

template <typename A>
cudaError_t LaunchColumnSums(const ColumnSumsArgs<A>& args, cudaStream_t stream) {
  if (args.width == 0) return cudaSuccess;
  const int64_t columns = args.width * (args.next_sums != nullptr ? 2 : 1);
  ColumnSumsKernel<A><<<NumBlocks(CeilDiv(columns, kColumnsPerTeam), 32), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

template cudaError_t LaunchColumnSums(const ColumnSumsArgs<float>&, cudaStream_t);
template cudaError_t LaunchColumnSums(const ColumnSumsArgs<double>&, cudaStream_t);

}  // namespace stemma::worker::cuda
