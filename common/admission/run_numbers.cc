#include "common/admission/run_numbers.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace stemma {
namespace {

// A learning rate of 1 replaces every weight in one step.
constexpr double kLearningRateMax = 1;

std::string OfRun(const RunNumbers& numbers) {
  return absl::StrCat(absl::string_view(numbers.dtype.data(), numbers.dtype.size()),
                      ", in which this run's optimizer computes");
}

}  // namespace

RunNumbers NumbersOfRun(RunDtype run_dtype) {
  if (run_dtype != RunDtype::kFp64) return {};
  return {.dtype = "fp64",
          .least = std::numeric_limits<double>::min(),
          .largest = std::numeric_limits<double>::max(),
          .beta_largest = 1 - 0x1p-53};
}

std::string CheckMagnitude(double value, const RunNumbers& numbers) {
  if (std::abs(value) <= numbers.largest) return "";
  return absl::StrCat("is ", value, ", must be in [", -numbers.largest, ", ", numbers.largest, "]: it overflows in ",
                      OfRun(numbers));
}

std::string CheckPositive(double value, const RunNumbers& numbers) {
  if (value >= numbers.least && value <= numbers.largest) return "";
  return absl::StrCat("is ", value, ", must be in [", numbers.least, ", ", numbers.largest, "]: it ",
                      value < numbers.least ? "vanishes" : "overflows", " in ", OfRun(numbers));
}

std::string CheckTemperature(double value, const RunNumbers& numbers) {
  const double coldest = std::sqrt(numbers.least);
  if (value >= coldest && value <= numbers.largest) return "";
  return absl::StrCat("is ", value, ", must be in [", coldest, ", ", numbers.largest,
                      "]: ", value < coldest ? "logits divided by it overflow" : "it overflows", " in ",
                      absl::string_view(numbers.dtype.data(), numbers.dtype.size()));
}

std::string CheckLearningRate(double value) {
  if (value >= 0 && value <= kLearningRateMax) return "";
  return absl::StrCat("is ", value, ", must be in [0, ", kLearningRateMax,
                      "]: a step of AdamW moves each weight by about the learning rate");
}

std::string CheckWeightDecay(double value, double learning_rate) {
  if (value < 0) return absl::StrCat("is ", value, ", must be at least 0");
  if (learning_rate * value <= 1) return "";
  return absl::StrCat("is ", value, ", must be at most ", 1 / learning_rate, " with learning_rate ", learning_rate,
                      ": a step multiplies weights by 1 - learning_rate * weight_decay");
}

std::string CheckEps(double value, const RunNumbers& numbers) {
  // Gradients below eps then have squares that vanish only where their steps do, too.
  const double least = std::sqrt(numbers.least);
  if (value >= least && value <= numbers.largest) return "";
  return absl::StrCat("is ", value, ", must be in [", least, ", ", numbers.largest,
                      "]: ", value < least ? "its square vanishes" : "it overflows", " in ", OfRun(numbers));
}

std::string CheckBeta(double value, const RunNumbers& numbers) {
  if (value >= 0 && value <= numbers.beta_largest) return "";
  return absl::StrCat("is ", value, ", must be in [0, 1)",
                      value > 0 && value < 1 ? absl::StrCat(": it is 1 in ", OfRun(numbers)) : "");
}

std::string CheckClippedNorm(double grad_norm, double clip, const RunNumbers& numbers) {
  const double clipped = grad_norm * clip;
  const double largest = std::sqrt(numbers.largest);
  if (clipped <= largest) return "";
  return absl::StrCat("its norm is ", grad_norm, clip < 1 ? absl::StrCat(", clipped to ", clipped) : "",
                      ", and squares above ", largest, " overflow in ", OfRun(numbers),
                      ": send smaller advantages or coefficients, or a smaller update.adam.max_grad_norm");
}

}  // namespace stemma
