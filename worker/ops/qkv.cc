#include "worker/ops/qkv.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

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

// Returns the angle from position to position of each pair of elements of a head.
std::vector<double> Frequencies(const ModelConfig& config) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < config.head_size / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(config.head_size);
    const double frequency = 1 / std::pow(config.rope_theta, exponent);
    frequencies.push_back(config.rope_scaling.has_value() ? ScaledFrequency(*config.rope_scaling, frequency)
                                                          : frequency);
  }
  return frequencies;
}

void CheckPositions(const at::Tensor& positions_T, int64_t rows) {
  CHECK_EQ(positions_T.numel(), rows);
  CHECK(positions_T.scalar_type() == at::kLong && positions_T.is_contiguous());
}

}  // namespace

// In double, a block of rows at a time: a model may have a million positions.
RopeTable MakeRopeTable(const ModelConfig& config, int64_t num_positions, at::ScalarType run_dtype, at::Device device) {
  constexpr int64_t kBlockRows = 4096;
  const std::vector<double> frequencies = Frequencies(config);
  const auto half = static_cast<int64_t>(frequencies.size());
  const auto kept = at::TensorOptions().dtype(AccType(run_dtype)).device(device);
  const RopeTable table{at::empty({num_positions, half}, kept), at::empty({num_positions, half}, kept)};
  const auto exact = at::TensorOptions().dtype(at::kDouble).device(at::kCPU);
  const int64_t block_rows = std::min(kBlockRows, num_positions);
  const at::Tensor cos_PE = at::empty({block_rows, half}, exact), sin_PE = at::empty({block_rows, half}, exact);
  auto *cos = cos_PE.mutable_data_ptr<double>(), *sin = sin_PE.mutable_data_ptr<double>();
  for (int64_t begin = 0; begin < num_positions; begin += block_rows) {
    const int64_t rows = std::min(block_rows, num_positions - begin);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(begin + row) * frequencies[static_cast<size_t>(i)];
        cos[row * half + i] = std::cos(angle);
        sin[row * half + i] = std::sin(angle);
      }
    }
    table.cos_PE.narrow(0, begin, rows).copy_(cos_PE.narrow(0, 0, rows));
    table.sin_PE.narrow(0, begin, rows).copy_(sin_PE.narrow(0, 0, rows));
  }
  return table;
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
