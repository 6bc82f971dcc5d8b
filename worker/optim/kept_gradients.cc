#include "worker/optim/kept_gradients.h"

#include <ATen/ops/dot.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstdint>

namespace stemma::worker {
namespace {

// What is upcast to fp64 at a time.
constexpr int64_t kCompareElements = int64_t{1} << 18;

int64_t ElementsOfRanges(const ParameterRanges& ranges) {
  int64_t elements = 0;
  for (const ParameterRange& range : ranges) elements += range.count;
  return elements;
}

at::Tensor GradientOf(const std::vector<Parameter>& parameters, const ParameterRange& range) {
  return parameters.at(static_cast<size_t>(range.parameter)).GradElements(range.begin, range.count);
}

// Adds the sums of squares of kept - now and of now to the two elements of `sums`, in fp64.
void AddSquares(const at::Tensor& kept, const at::Tensor& now, const at::Tensor& sums) {
  for (int64_t begin = 0; begin < now.numel(); begin += kCompareElements) {
    const int64_t count = std::min(kCompareElements, now.numel() - begin);
    const at::Tensor second = now.narrow(0, begin, count).to(at::kDouble);
    const at::Tensor error = at::sub(kept.narrow(0, begin, count).to(at::kDouble), second);
    sums[0].add_(at::dot(error, error));
    sums[1].add_(at::dot(second, second));
  }
}

}  // namespace

KeptGradients::KeptGradients(const std::vector<Parameter>& parameters, const ParameterRanges& ranges)
    : ranges_(ranges) {
  if (ranges_.empty()) return;
  kept_ = at::empty({ElementsOfRanges(ranges_)}, GradientOf(parameters, ranges_.front()).options());
  int64_t begin = 0;
  for (const ParameterRange& range : ranges_) {
    kept_.narrow(0, begin, range.count).copy_(GradientOf(parameters, range));
    begin += range.count;
  }
}

std::vector<internal::v1::GradientError> KeptGradients::Compare(const std::vector<Parameter>& parameters) const {
  std::vector<internal::v1::GradientError> errors;
  if (ranges_.empty()) return errors;
  const at::Tensor sums = at::zeros({static_cast<int64_t>(ranges_.size()), 2}, kept_.options().dtype(at::kDouble));
  int64_t begin = 0;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const ParameterRange& range = ranges_[i];
    AddSquares(kept_.narrow(0, begin, range.count), GradientOf(parameters, range), sums[static_cast<int64_t>(i)]);
    begin += range.count;
  }
  const at::Tensor on_host = sums.to(at::kCPU);  // the one wait for the device
  const auto* values = on_host.const_data_ptr<double>();
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const std::string& name = parameters.at(static_cast<size_t>(ranges_[i].parameter)).name;
    if (errors.empty() || errors.back().name() != name) errors.emplace_back().set_name(name);
    errors.back().set_error_squared(errors.back().error_squared() + values[2 * i]);
    errors.back().set_dense_squared(errors.back().dense_squared() + values[2 * i + 1]);
  }
  return errors;
}

}  // namespace stemma::worker
