// The entries of the composed table. Private to worker/backend/composed.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/backend/accumulate_type.h"
#include "worker/backend/kernels.h"

namespace stemma::worker::composed {

// Returns x in the dtype in which it is computed.
inline at::Tensor Acc(const at::Tensor& x) { return x.to(AccType(x.scalar_type())); }

void RmsNormForward(const RmsNormForwardOperands& args);
void RmsNormBackward(const RmsNormBackwardOperands& args);
void SwigluForward(const SwigluForwardOperands& args);
void SwigluBackward(const SwigluBackwardOperands& args);
void QkvForward(const QkvForwardOperands& args);
void QkvBackward(const QkvBackwardOperands& args);
void EmbeddingBackward(const EmbeddingBackwardOperands& args);
void HeadForward(const HeadForwardOperands& args);
void HeadBackward(const HeadBackwardOperands& args);
void Loss(const LossOperands& args);
void AddWeightGradient(const WeightGradientOperands& args);
void Logits(const LogitsOperands& args);
void LogitsBackward(const LogitsBackwardOperands& args);
void VectorNorm(const VectorNormOperands& args);
void FirstNonfinite(const FirstNonfiniteOperands& args);
void WordSum(const WordSumOperands& args);

}  // namespace stemma::worker::composed
