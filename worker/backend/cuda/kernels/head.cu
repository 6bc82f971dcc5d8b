#include "worker/backend/cuda/kernels/grid.h"
#include "worker/backend/cuda/kernels/head.h"
#include "worker/backend/cuda/kernels/launch.h"
#include "worker/backend/cuda/kernels/team.h"

namespace stemma::worker::cuda {
namespace {

constexpr int kMaxThreads = 512;

template <int V>
__global__ void __launch_bounds__(kMaxThreads) HeadForwardKernel(const HeadForwardArgs args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  HeadForward<V>(team, args);
}

template <typename Out, int V>
__global__ void __launch_bounds__(kMaxThreads) HeadBackwardKernel(const HeadBackwardArgs args) {
  __shared__ BlockScratch scratch;
  BlockTeam team(scratch);
  HeadBackward<Out, V>(team, args);
}

}  // namespace

cudaError_t LaunchHeadForward(const HeadForwardArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const unsigned blocks = NumBlocks(args.rows, 16);
  if (HeadUsesVectors(args)) {
    const unsigned threads = NumThreads(args.vocab / kHeadVector, kMaxThreads);
    HeadForwardKernel<kHeadVector><<<blocks, threads, 0, stream>>>(args);
  } else {
    HeadForwardKernel<1><<<blocks, NumThreads(args.vocab, kMaxThreads), 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template <typename Out>
cudaError_t LaunchHeadBackward(const HeadBackwardArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  const unsigned blocks = NumBlocks(args.rows, 16);
  if (HeadUsesVectors(args)) {
    const unsigned threads = NumThreads(args.vocab / kHeadVector, kMaxThreads);
    HeadBackwardKernel<Out, kHeadVector><<<blocks, threads, 0, stream>>>(args);
  } else {
    HeadBackwardKernel<Out, 1><<<blocks, NumThreads(args.vocab, kMaxThreads), 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template cudaError_t LaunchHeadBackward<Bf16>(const HeadBackwardArgs&, cudaStream_t);
template cudaError_t LaunchHeadBackward<float>(const HeadBackwardArgs&, cudaStream_t);

}  // namespace stemma::worker::cuda
