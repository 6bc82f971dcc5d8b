#include "server/simulation/operation_seconds.h"

#include <algorithm>

namespace stemma::server {
namespace {

constexpr std::array<LinkRates, kNumAxes> kLinkOfAxis = {kTensorLink, kContextLink, kStageLink, kDataLink};

}  // namespace

AxisSeconds OperationSeconds::Exposed() const {
  AxisSeconds exposed;
  for (size_t axis = 0; axis < kNumAxes; ++axis) exposed[axis] = wire_s[axis] - hidden_s[axis];
  exposed[static_cast<size_t>(Axis::kStage)] = 0;
  return exposed;
}

OperationSeconds SecondsOf(const Work& work, const Rates& rates) {
  OperationSeconds seconds;
  Work compute = work;
  for (size_t axis = 0; axis < kNumAxes; ++axis) {
    const LinkRates link = kLinkOfAxis[axis];
    seconds.sent_bytes[axis] = work[link.byte];
    seconds.wire_s[axis] = work[link.byte] * rates[link.byte] + work[link.message] * rates[link.message];
    compute[link.byte] = compute[link.message] = 0;
  }
  seconds.message_s = seconds.wire_s[static_cast<size_t>(Axis::kStage)];
  seconds.copy_s = work[kCopy] * rates[kCopy];
  compute[kCopy] = 0;
  seconds.compute_s = Seconds(compute, rates);
  return seconds;
}

void HideBesideLayers(Axis axis, double share, int64_t layers, OperationSeconds& seconds) {
  const auto of = static_cast<size_t>(axis);
  const double wire_s = share * seconds.wire_s[of] / static_cast<double>(layers);
  // What other axes hold the rank for, passes beside it as well.
  const double tensor_s = axis == Axis::kTensor ? 0 : seconds.wire_s[static_cast<size_t>(Axis::kTensor)];
  const double layer_s = (seconds.compute_s + tensor_s) / static_cast<double>(layers);
  seconds.hidden_s[of] += static_cast<double>(layers - 1) * std::min(wire_s, layer_s);
}

}  // namespace stemma::server
