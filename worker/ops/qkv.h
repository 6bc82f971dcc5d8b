// From the fused QKV product to what attention reads: split into heads, QK-norm where the family has it, rotary
// position embedding (half-split, as in Hugging Face: out = x·cos + rotate_half(x)·sin). Queries are [H, T, E]; keys
// and values row-major, so that rows of a prefix are adjacent. One pass over memory in each direction.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "common/model/model_config.h"
#include "worker/backend/backend.h"

namespace stemma::worker {

// cos and sin of position · inv_freq, [max positions, E/2], computed in double, kept in fp32 (fp64 in fp64).
struct RopeTable {
  at::Tensor cos_PE, sin_PE;
};
RopeTable MakeRopeTable(const ModelConfig& config, int64_t num_positions, at::ScalarType run_dtype, at::Device device);

struct QkvShape {
  int64_t num_heads;     // H; 0: the product holds K and V columns only (last layer of a prefix)
  int64_t num_kv_heads;  // K
  int64_t head_size;     // E
};

// QK-norm weights [E]; undefined where the family has none.
struct QkNorm {
  at::Tensor q_weight_E, k_weight_E;
  double eps = 0;
};

struct QkvHeads {
  at::Tensor q_HTE;         // laid out as Backend::queries_by_token says; undefined when num_heads is 0
  at::Tensor k_TKE, v_TKE;  // contiguous
  at::Tensor rstd_TJ;       // [T, H + K] of QK-norm; undefined without
};

// qkv_TJ: [T, (H + 2K)·E], columns q, k, v. positions_T: int64.
QkvHeads QkvForward(const Backend& backend, const at::Tensor& qkv_TJ, const at::Tensor& positions_T,
                    const RopeTable& rope, const QkvShape& shape, const QkNorm& norm);

// What QkvBackward reads and adds to.
struct QkvGradients {
  const at::Tensor &dq_HTE, &dk_TKE, &dv_TKE;  // dq undefined when num_heads is 0; dk, dv: fp32 (fp64) or run dtype
  const at::Tensor &qkv_TJ, &rstd_TJ;          // read with QK-norm only, else undefined
  const at::Tensor &dq_norm_E, &dk_norm_E;     // added to: fp32; fp64 in fp64
};

// Returns dqkv_TJ in the run dtype.
at::Tensor QkvBackward(const Backend& backend, const QkvGradients& gradients, const at::Tensor& positions_T,
                       const RopeTable& rope, const QkNorm& norm, at::ScalarType run_dtype);

}  // namespace stemma::worker
