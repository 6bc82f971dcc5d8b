// What Phases A, B and C share. Private to worker/model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/model/layer.h"

namespace stemma::worker {

double AttentionScale(const ModelConfig& config);
at::Tensor ZeroKv(const LayerContext& context, int64_t rows);  // [rows, K, E] of the accumulate dtype
at::Tensor Embed(const LayerContext& context, const at::Tensor& tokens_T);

}  // namespace stemma::worker
