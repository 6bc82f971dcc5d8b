// What each tape policy keeps, in one table: the blocks of a layer drop and restore by it (worker/model), the byte
// formulas count by it (common/cost/tensor_bytes.h). What each policy costs: docs/memory.md. A policy keeps what the
// next one keeps, and more.
#pragma once

#include <cstdint>

#include "stemma/v1/plan.pb.h"

namespace stemma {

// Tensors that blocks keep for their backward. K and V are not among them: they belong to the hot set.
enum class TapeTensor : uint8_t {
  kInput,         // of the layer
  kStatistic,     // of a block's norm
  kKvStatistic,   // the same, where only K and V are computed
  kNormed,        // what a block's norm makes
  kBeforeQkNorm,  // the fused product and its statistics, in families with QK-norm
  kQueries,       // after rotation
  kAttended,      // attention's merged output and its log-sum-exp
  kResidual,      // the attention block's output, the MLP block's input
  kRouting,       // with experts: whom each row goes to, and the weights
  kGateUp,        // both products
  kActivation,    // silu(gate) · up
};

// The last policy that keeps a tensor.
constexpr v1::TapePolicy KeptUpTo(TapeTensor tensor) {
  switch (tensor) {
    case TapeTensor::kNormed:
    case TapeTensor::kActivation:
      return v1::S0;
    case TapeTensor::kGateUp:
      return v1::S1;
    case TapeTensor::kBeforeQkNorm:
    case TapeTensor::kQueries:
      return v1::S2;
    case TapeTensor::kStatistic:
    case TapeTensor::kAttended:
    case TapeTensor::kResidual:
      return v1::S3;
    case TapeTensor::kInput:
    case TapeTensor::kRouting:
    case TapeTensor::kKvStatistic:
      return v1::S4;
  }
  return v1::S0;
}

constexpr bool Keeps(v1::TapePolicy policy, TapeTensor tensor) { return policy <= KeptUpTo(tensor); }

inline bool KeepsElementwise(v1::TapePolicy policy) { return Keeps(policy, TapeTensor::kNormed); }
inline bool KeepsGateUp(v1::TapePolicy policy) { return Keeps(policy, TapeTensor::kGateUp); }
inline bool KeepsQueries(v1::TapePolicy policy) { return Keeps(policy, TapeTensor::kQueries); }
inline bool KeepsAttention(v1::TapePolicy policy) { return Keeps(policy, TapeTensor::kAttended); }
inline bool KeepsInputs(v1::TapePolicy policy) { return Keeps(policy, TapeTensor::kInput); }

}  // namespace stemma
