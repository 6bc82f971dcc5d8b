#include "worker/ops/qkv.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <cmath>
#include <numbers>

#include "worker/ops/run_type.h"

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

template <typename T>
kernels::HeadRows<const T> HeadRowsOf(const at::Tensor& x_HTE) {
  if (!x_HTE.defined()) return {};
  CHECK_EQ(x_HTE.dim(), 3);
  CHECK(x_HTE.stride(2) == 1 || x_HTE.size(2) <= 1) << "the last dim must be contiguous";
  return {StridedData<T>(x_HTE), x_HTE.stride(0), x_HTE.stride(1)};
}

void CheckPositions(const at::Tensor& positions_T, int64_t rows) {
  CHECK_EQ(positions_T.numel(), rows);
  CHECK(positions_T.scalar_type() == at::kLong && positions_T.is_contiguous());
}

template <typename T, typename G>
void RunBackward(const at::Tensor& dq_HTE, const at::Tensor& dk_KTE, const at::Tensor& dv_KTE,
                 const at::Tensor& positions_T, const RopeTable& rope, const QkvShape& shape, const QkNorm& norm,
                 const at::Tensor& qkv_TJ, const at::Tensor& rstd_TJ, const at::Tensor& dq_norm_E,
                 const at::Tensor& dk_norm_E, const at::Tensor& dqkv_TJ) {
  using A = kernels::Acc<T>;
  kernels::QkvBackward<T, G>({.dq_HTE = HeadRowsOf<T>(dq_HTE),
                              .dk_KTE = HeadRowsOf<G>(dk_KTE),
                              .dv_KTE = HeadRowsOf<G>(dv_KTE),
                              .positions_T = positions_T.const_data_ptr<int64_t>(),
                              .cos_PE = Data<A>(rope.cos_PE),
                              .sin_PE = Data<A>(rope.sin_PE),
                              .q_weight_E = Data<T>(norm.q_weight_E),
                              .k_weight_E = Data<T>(norm.k_weight_E),
                              .qkv_TJ = Data<T>(qkv_TJ),
                              .rstd_TJ = Data<A>(rstd_TJ),
                              .dq_weight_E = Data<A>(dq_norm_E),
                              .dk_weight_E = Data<A>(dk_norm_E),
                              .dqkv_TJ = Data<T>(dqkv_TJ),
                              .rows = dk_KTE.size(1),
                              .num_heads = shape.num_heads,
                              .num_kv_heads = shape.num_kv_heads,
                              .head_size = shape.head_size});
}

}  // namespace

RopeTable MakeRopeTable(const ModelConfig& config, int64_t num_positions, at::ScalarType run_dtype) {
  const int64_t half = config.head_size / 2;
  RopeTable table{at::empty({num_positions, half}, at::kDouble), at::empty({num_positions, half}, at::kDouble)};
  double* cos = Data<double>(table.cos_PE);
  double* sin = Data<double>(table.sin_PE);
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
  return {table.cos_PE.to(kept), table.sin_PE.to(kept)};
}

QkvHeads QkvForward(const at::Tensor& qkv_TJ, const at::Tensor& positions_T, const RopeTable& rope,
                    const QkvShape& shape, const QkNorm& norm) {
  RECORD_USER_SCOPE("QkvForward");
  const int64_t rows = qkv_TJ.size(0), num_rotated = shape.num_heads + shape.num_kv_heads;
  CHECK_EQ(qkv_TJ.size(1), (num_rotated + shape.num_kv_heads) * shape.head_size);
  CheckPositions(positions_T, rows);
  QkvHeads heads;
  const auto options = qkv_TJ.options();
  if (shape.num_heads > 0) heads.q_HTE = at::empty({shape.num_heads, rows, shape.head_size}, options);
  heads.k_KTE = at::empty({shape.num_kv_heads, rows, shape.head_size}, options);
  heads.v_KTE = at::empty({shape.num_kv_heads, rows, shape.head_size}, options);
  if (norm.k_weight_E.defined()) {
    heads.rstd_TJ = at::empty({rows, num_rotated}, options.dtype(AccType(qkv_TJ.scalar_type())));
  }
  DispatchRunType(qkv_TJ.scalar_type(), [&]<typename T>() {
    using A = kernels::Acc<T>;
    kernels::QkvForward<T>({.qkv_TJ = Data<T>(qkv_TJ),
                            .positions_T = positions_T.const_data_ptr<int64_t>(),
                            .cos_PE = Data<A>(rope.cos_PE),
                            .sin_PE = Data<A>(rope.sin_PE),
                            .q_weight_E = Data<T>(norm.q_weight_E),
                            .k_weight_E = Data<T>(norm.k_weight_E),
                            .eps = norm.eps,
                            .q_HTE = Data<T>(heads.q_HTE),
                            .k_KTE = Data<T>(heads.k_KTE),
                            .v_KTE = Data<T>(heads.v_KTE),
                            .rstd_TJ = Data<A>(heads.rstd_TJ),
                            .rows = rows,
                            .num_heads = shape.num_heads,
                            .num_kv_heads = shape.num_kv_heads,
                            .head_size = shape.head_size});
  });
  return heads;
}

at::Tensor QkvBackward(const at::Tensor& dq_HTE, const at::Tensor& dk_KTE, const at::Tensor& dv_KTE,
                       const at::Tensor& positions_T, const RopeTable& rope, const QkvShape& shape, const QkNorm& norm,
                       const at::Tensor& qkv_TJ, const at::Tensor& rstd_TJ, const at::Tensor& dq_norm_E,
                       const at::Tensor& dk_norm_E, at::ScalarType run_dtype) {
  RECORD_USER_SCOPE("QkvBackward");
  const int64_t rows = dk_KTE.size(1);
  CheckPositions(positions_T, rows);
  CHECK_EQ(dq_HTE.defined(), shape.num_heads > 0);
  CHECK(dk_KTE.scalar_type() == dv_KTE.scalar_type());
  at::Tensor dqkv_TJ = at::empty({rows, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size},
                                 dk_KTE.options().dtype(run_dtype));
  DispatchRunType(run_dtype, [&]<typename T>() {
    if (dk_KTE.scalar_type() == run_dtype) {
      RunBackward<T, T>(dq_HTE, dk_KTE, dv_KTE, positions_T, rope, shape, norm, qkv_TJ, rstd_TJ, dq_norm_E, dk_norm_E,
                        dqkv_TJ);
    } else {
      RunBackward<T, kernels::Acc<T>>(dq_HTE, dk_KTE, dv_KTE, positions_T, rope, shape, norm, qkv_TJ, rstd_TJ,
                                      dq_norm_E, dk_norm_E, dqkv_TJ);
    }
  });
  return dqkv_TJ;
}

}  // namespace stemma::worker
