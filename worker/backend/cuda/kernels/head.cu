#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/head.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/launch_sizes.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

template <int V>
__global__ void __launch_bounds__(kHeadThreads) HeadForwardKernel(const HeadForwardArgs args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  HeadForward<V>(team, args);
}

template <typename Out, int V>
__global__ void __launch_bounds__(kHeadThreads) HeadBackwardKernel(const HeadBackwardArgs args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  HeadBackward<Out, V>(team, args);
}

}  // namespace

cudaError_t LaunchHeadForward(const HeadForwardArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const unsigned blocks = NumBlocks(args.rows, kHeadBlocks);
  if (HeadUsesVectors(args)) {
    const unsigned threads = NumThreads(args.vocab / kHeadVector, kHeadThreads);
    HeadForwardKernel<kHeadVector><<<blocks, threads, 0, stream>>>(args);
  } else {
    HeadForwardKernel<1><<<blocks, NumThreads(args.vocab, kHeadThreads), 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template <typename Out>
cudaError_t LaunchHeadBackward(const HeadBackwardArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const unsigned blocks = NumBlocks(args.rows, kHeadBlocks);
  if (HeadUsesVectors(args)) {
    const unsigned threads = NumThreads(args.vocab / kHeadVector, kHeadThreads);
    HeadBackwardKernel<Out, kHeadVector><<<blocks, threads, 0, stream>>>(args);
  } else {
    HeadBackwardKernel<Out, 1><<<blocks, NumThreads(args.vocab, kHeadThreads), 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template cudaError_t LaunchHeadBackward<Bf16>(const HeadBackwardArgs&, cudaStream_t);
template cudaError_t LaunchHeadBackward<float>(const HeadBackwardArgs&, cudaStream_t);

}  // namespace stemma::worker::cuda
