// Marks of functions that run on a CUDA device where nvcc compiles them, and on the host everywhere else.
//
// Included by worker/backend/loss_row.h and worker/backend/cuda/kernels: one source for both, so that what a device
// runs is also run by tests without one.
#pragma once

#if defined(__CUDACC__)
#define STEMMA_DEVICE __device__ __forceinline__
#define STEMMA_UNROLL _Pragma("unroll")
#define STEMMA_UNROLL_BY_8 _Pragma("unroll 8")
#define STEMMA_NO_UNROLL _Pragma("unroll 1")
#else
#define STEMMA_DEVICE inline
#define STEMMA_UNROLL
#define STEMMA_UNROLL_BY_8
#define STEMMA_NO_UNROLL
#endif
