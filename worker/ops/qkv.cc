#include "worker/ops/qkv.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

#include <cmath>
#include <numbers>

#include "worker/backend/accumulate_type.h"

namespace stemma::worker {

namespace {

// Long waves are stretched, short ones kept, those between interpolated.
double ScaledFrequency(const Llama3RopeScaling& scaling, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double original = static_cast<double>(scaling.original_max_positions);
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

void CheckPositions(const at::Tensor& positions_T, int64_t rows) {
  CHECK_EQ(positions_T.numel(), rows);
  CHECK(positions_T.scalar_type() == at::kLong && positions_T.is_contiguous());
}

}  // namespace

RopeTable MakeRopeTable(const ModelConfig& config, int64_t num_positions, at::ScalarType run_dtype, at::Device device) {
  const int64_t half = config.head_size / 2;
  const auto options = at::TensorOptions().dtype(at::kDouble).device(at::kCPU);
  const RopeTable table{at::empty({num_positions, half}, options), at::empty({num_positions, half}, options)};
  auto* cos = table.cos_PE.mutable_data_ptr<double>();
  auto* sin = table.sin_PE.mutable_data_ptr<double>();
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(config.head_size);
    double frequency = 1 / std::pow(config.rope_theta, exponent);
    if (config.rope_scaling.has_value()) frequency = ScaledFrequency(*config.rope_scaling, frequency);
    for (int64_t p = 0; p < num_positions; ++p) {
      cos[p * half + i] = std::cos(static_cast<double>(p) * frequency);
      sin[p * half + i] = std::sin(static_cast<double>(p) * frequency);
    }
  }
  const at::ScalarType kept = AccType(run_dtype);
  return {table.cos_PE.to(device, kept), table.sin_PE.to(device, kept)};
}

QkvHeads QkvForward(const Backend& backend, const at::Tensor& qkv_TJ, const at::Tensor& positions_T,
                    const RopeTable& rope, const QkvShape& shape, const QkNorm& norm) {
  RECORD_USER_SCOPE("QkvForward");
  const int64_t rows = qkv_TJ.size(0), num_rotated = shape.num_heads + shape.num_kv_heads;
  CHECK_EQ(qkv_TJ.size(1), (num_rotated + shape.num_kv_heads) * shape.head_size);
  CheckPositions(positions_T, rows);
  QkvHeads heads;
  const auto options = qkv_TJ.options();
  if (shape.num_heads > 0) {
    heads.q_HTE = backend.queries_by_token
                      ? at::empty({rows, shape.num_heads, shape.head_size}, options).transpose(0, 1)
                      : at::empty({shape.num_heads, rows, shape.head_size}, options);
  }
  heads.k_TKE = at::empty({rows, shape.num_kv_heads, shape.head_size}, options);
  heads.v_TKE = at::empty({rows, shape.num_kv_heads, shape.head_size}, options);
  if (norm.k_weight_E.defined()) {
    heads.rstd_TJ = at::empty({rows, num_rotated}, options.dtype(AccType(qkv_TJ.scalar_type())));
  }
  backend.kernels.qkv_forward({.qkv_TJ = qkv_TJ,
                               .positions_T = positions_T,
                               .cos_PE = rope.cos_PE,
                               .sin_PE = rope.sin_PE,
                               .q_weight_E = norm.q_weight_E,
                               .k_weight_E = norm.k_weight_E,
                               .eps = norm.eps,
                               .q_HTE = heads.q_HTE,
                               .k_TKE = heads.k_TKE,
                               .v_TKE = heads.v_TKE,
                               .rstd_TJ = heads.rstd_TJ});
  return heads;
}

at::Tensor QkvBackward(const Backend& backend, const QkvGradients& gradients, const at::Tensor& positions_T,
                       const RopeTable& rope, const QkNorm& norm, at::ScalarType run_dtype) {
  RECORD_USER_SCOPE("QkvBackward");
  const at::Tensor &dq_HTE = gradients.dq_HTE, &dk_TKE = gradients.dk_TKE, &dv_TKE = gradients.dv_TKE;
  const int64_t rows = dk_TKE.size(0), num_heads = dq_HTE.defined() ? dq_HTE.size(0) : 0;
  CheckPositions(positions_T, rows);
  CHECK(dk_TKE.scalar_type() == dv_TKE.scalar_type());
  at::Tensor dqkv_TJ =
      at::empty({rows, (num_heads + 2 * dk_TKE.size(1)) * dk_TKE.size(2)}, dk_TKE.options().dtype(run_dtype));
  backend.kernels.qkv_backward({.dq_HTE = dq_HTE,
                                .dk_TKE = dk_TKE,
                                .dv_TKE = dv_TKE,
                                .positions_T = positions_T,
                                .cos_PE = rope.cos_PE,
                                .sin_PE = rope.sin_PE,
                                .q_weight_E = norm.q_weight_E,
                                .k_weight_E = norm.k_weight_E,
                                .qkv_TJ = gradients.qkv_TJ,
                                .rstd_TJ = gradients.rstd_TJ,
                                .dq_weight_E = gradients.dq_norm_E,
                                .dk_weight_E = gradients.dk_norm_E,
                                .dqkv_TJ = dqkv_TJ});
  return dqkv_TJ;
}

}  // namespace stemma::worker
