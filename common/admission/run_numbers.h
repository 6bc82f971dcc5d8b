// Which numbers a run's arithmetic can hold, and the checks that depend on it. Pure.
//
// Losses are computed in double; gradients, masters and moments in fp32 (fp64 in an fp64 run), bf16 runs included. A
// number that overflows or vanishes there would give NaN weights, or an optimizer that never moves a weight again.
#pragma once

#include <limits>
#include <string>
#include <string_view>

#include "common/base/dtype_names.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

// The dtype of gradients and optimizer states.
struct RunNumbers {
  std::string_view dtype = "fp32";
  double least = std::numeric_limits<float>::min();    // above 0 and normal
  double largest = std::numeric_limits<float>::max();  // finite
  double beta_largest = 1 - 0x1p-24;                   // below 1
};

RunNumbers NumbersOfRun(RunDtype run_dtype);

// Each returns what is wrong with a finite value of at most the largest magnitude, or "".
std::string CheckMagnitude(double value, const RunNumbers& numbers);  // for any finite value
std::string CheckPositive(double value, const RunNumbers& numbers);   // neither overflows nor vanishes; value > 0
// The value divides logits, which must not overflow by it; value > 0.
std::string CheckTemperature(double value, const RunNumbers& numbers);
std::string CheckLearningRate(double value);
std::string CheckWeightDecay(double value, double learning_rate);
std::string CheckEps(double value, const RunNumbers& numbers);
std::string CheckBeta(double value, const RunNumbers& numbers);

// Checks the second moments of a step with this norm of its gradients and this clip factor: "" or why they overflow.
// Holds for every parameter: no gradient is larger than the norm.
std::string CheckClippedNorm(double grad_norm, double clip, const RunNumbers& numbers);

}  // namespace stemma
