// FlashCalls: the attention calls of one library, in the layout that FA2 takes and gives.
//
// Called by FlashAttention (flash_attention.h) and by the self-check. Implementations: fa2_calls.h, cudnn_calls.h,
// bucketed_calls.h over another, and a fake in plain ATen ops in the tests. Always:
//  (1) a call has rows and keys, and so has each of its sequences: a kernel's zero keys give an LSE of +inf.
//  (2) the LSE is the natural logarithm with the scale inside, contiguous, in Acc: [B, H, S], or [H, T] where packed.
//  (3) Backward takes the out and the lse of *all* keys that a row saw, whichever call saw them, and so gives this
//      call's part of dq and all of dk, dv (the paper, Appendix A). It reads lse by its pointer: contiguous.
//  (4) dq, dk, dv are in the dtype of q; with grouped heads dk and dv have K heads.
// Letters as in worker/backend/attention.h; B batch, S rows of each entry.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace stemma::worker::cuda {

// What libraries are given where they ask for a probability of dropping out.
inline constexpr double kNoDropout = 0;

// Dense: q [B, S, H, E], k and v [B, C, K, E]. Packed: q [T, H, E], k and v [C, K, E], sequences by offsets. Any
// strides, 0 among them, but a last dim that is contiguous.
struct AttentionCall {
  at::Tensor q = {}, k = {}, v = {};
  at::Tensor offsets_q = {}, offsets_k = {};  // int32 [n + 1], on the device; undefined: dense
  int64_t max_q = 0, max_k = 0;               // the longest sequence; dense: S and C
  bool causal = false;                        // as many keys as rows
  double scale = 1;

  bool packed() const { return offsets_q.defined(); }
};

// What a forward tells its backward of random numbers. There is no dropout here, so that no kernel reads it: the
// backward needs tensors of this form only.
struct RngState {
  at::Tensor state, unused;
};

struct CallOutput {
  at::Tensor out;  // shape of q, any strides, last dim contiguous
  at::Tensor lse;
  RngState rng;
};

struct CallBackward {
  at::Tensor dout, out;  // shape of q
  at::Tensor lse;
  RngState rng;
};

struct CallGradients {
  at::Tensor dq, dk, dv;
};

class FlashCalls {
 public:
  virtual ~FlashCalls() = default;

  // Whether it has kernels for this.
  virtual bool Takes(at::ScalarType dtype, int64_t head_size) const = 0;
  virtual CallOutput Forward(const AttentionCall& call) const = 0;
  virtual CallGradients Backward(const AttentionCall& call, const CallBackward& saved) const = 0;
};

}  // namespace stemma::worker::cuda
