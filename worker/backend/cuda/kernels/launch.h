// Launches of the fused kernels: raw pointers, strides and sizes in, a launch on a stream out.
//
// Called by worker/backend/cuda, which checks shapes and turns errors into exceptions. Free of LibTorch, so that nvcc
// need not read it. A launcher picks packs of 16 bytes where addresses, strides and sizes allow and single elements
// elsewhere; grids are bounded by the device's size, and indices are 64 bits wide. No rows: no launch. Nothing here
// waits for the device. T: Bf16 or float.
#pragma once

#include <cuda_runtime_api.h>

#include "worker/backend/cuda/kernels/embedding.h"
#include "worker/backend/cuda/kernels/finite.h"
#include "worker/backend/cuda/kernels/head.h"
#include "worker/backend/cuda/kernels/merge.h"
#include "worker/backend/cuda/kernels/norm.h"
#include "worker/backend/cuda/kernels/qkv.h"
#include "worker/backend/cuda/kernels/sums.h"
#include "worker/backend/cuda/kernels/swiglu.h"
#include "worker/backend/cuda/kernels/vector_norm.h"
#include "worker/backend/cuda/kernels/word_sum.h"

namespace stemma::worker::cuda {

// A: float or double.
template <typename A>
cudaError_t LaunchColumnSums(const ColumnSumsArgs<A>& args, cudaStream_t stream);

template <typename T>
cudaError_t LaunchRmsNormForward(const RmsNormForwardArgs<T>& args, cudaStream_t stream);

// Rows of `partials` that the backward of so many rows writes: a function of the rows and of the current device.
int64_t RmsNormBackwardTeams(int64_t rows);
// Adds to dweight_D, through args.partials.
template <typename T>
cudaError_t LaunchRmsNormBackward(const RmsNormBackwardArgs<T>& args, float* dweight_D, cudaStream_t stream);

template <typename T>
cudaError_t LaunchSwigluForward(const SwigluForwardArgs<T>& args, cudaStream_t stream);
template <typename T>
cudaError_t LaunchSwigluBackward(const SwigluBackwardArgs<T>& args, cudaStream_t stream);

template <typename T>
cudaError_t LaunchQkvForward(const QkvForwardArgs<T>& args, cudaStream_t stream);

// The widest head whose sums of QK-norm weights are kept in a block's memory: 32 KiB of the 48 that any launch may
// have.
inline constexpr int64_t kMaxNormedHeadSize = 256;
// Where a backward with QK-norm keeps and leaves its sums; all null without.
struct QkvWeightSums {
  float* partials;                   // [QkvBackwardBlocks, 2E]
  float *dq_weight_E, *dk_weight_E;  // added to; dq_weight: null where there are no queries
};
int64_t QkvBackwardBlocks(int64_t rows);
template <typename T, typename G>
cudaError_t LaunchQkvBackward(const QkvBackwardArgs<T, G>& args, const QkvWeightSums& sums, cudaStream_t stream);

cudaError_t LaunchHeadForward(const HeadForwardArgs& args, cudaStream_t stream);
// Out: the dtype of dlogits.
template <typename Out>
cudaError_t LaunchHeadBackward(const HeadBackwardArgs& args, cudaStream_t stream);

template <typename T>
cudaError_t LaunchEmbeddingBackward(const EmbeddingBackwardArgs<T>& args, cudaStream_t stream);

// Elements of FirstNonfiniteArgs::partials.
int64_t FirstNonfiniteTeams(int64_t count);
// Writes the index, or -1, to *first on the device.
template <typename T>
cudaError_t LaunchFirstNonfinite(const FirstNonfiniteArgs<T>& args, int64_t* first, cudaStream_t stream);

// Elements of VectorNormArgs::partials.
int64_t VectorNormTeams(int64_t count);
// Writes the norm to *norm on the device.
template <typename T>
cudaError_t LaunchVectorNorm(const VectorNormArgs<T>& args, double* norm, cudaStream_t stream);

// Elements of WordSumArgs::partials.
int64_t WordSumTeams(int64_t count);
// Writes the sum to *sum on the device.
template <typename T>
cudaError_t LaunchWordSum(const WordSumArgs<T>& args, int64_t* sum, cudaStream_t stream);

template <typename T>
cudaError_t LaunchMerge(const MergeArgs<T>& args, cudaStream_t stream);
template <typename T>
cudaError_t LaunchAddParts(const AddPartsArgs<T>& args, cudaStream_t stream);

}  // namespace stemma::worker::cuda
