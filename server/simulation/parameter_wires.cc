#include "server/simulation/parameter_wires.h"

#include <string_view>

#include "glog/logging.h"

namespace stemma::server {
namespace {

// Returns which sweeps an operation makes, one after the other.
std::vector<Sweep> SweepsOf(const SweptOperation& operation) {
  if (operation.letter == 'F') return {Sweep::kWave};
  if (operation.letter == 'B') return {Sweep::kBackward};
  std::vector<Sweep> of_block;
  if (operation.letter == 'A' || operation.sweeps.prefix_again()) of_block.push_back(Sweep::kPrefix);
  if (operation.letter == 'C') of_block.push_back(Sweep::kBackward);
  std::vector<Sweep> sweeps;
  for (uint32_t block = 0; block < operation.sweeps.prefix_blocks(); ++block) {
    sweeps.insert(sweeps.end(), of_block.begin(), of_block.end());
  }
  return sweeps;
}

}  // namespace

std::vector<OperationSeconds> ParameterWiresOf(const ParameterUnits& units, const ByteShape& stage, const Rates& rates,
                                               const SweptPass& pass) {
  OperationVisits visits;
  for (const SweptOperation& operation : pass.operations) {
    CHECK(std::string_view("AFBC").find(operation.letter) != std::string_view::npos);
    std::vector<UnitVisit>& of_operation = visits.emplace_back();
    for (const Sweep sweep : SweepsOf(operation)) {
      const std::vector<UnitVisit> more = VisitsOf(units, sweep, pass.forward_only);
      of_operation.insert(of_operation.end(), more.begin(), more.end());
    }
  }
  if (pass.reduces_once) ReduceOnce(visits);
  std::vector<OperationSeconds> wires;
  for (const UnitTraffic& traffic : TrafficOf(units, visits)) {
    Work work;
    work[kDataByte] = static_cast<double>(traffic.weight_elements * stage.run_bytes +
                                          traffic.gradient_elements * stage.accumulate_bytes);
    work[kDataCollective] = static_cast<double>(traffic.weight_collectives + traffic.gradient_collectives);
    wires.push_back(SecondsOf(work, rates));
  }
  return wires;
}

void AddParameterWire(const OperationSeconds& wire, int64_t layers, OperationSeconds& seconds) {
  seconds.wire_s[kDataAt] += wire.wire_s[kDataAt];
  seconds.sent_bytes[kDataAt] += wire.sent_bytes[kDataAt];
  HideBesideLayers(Axis::kData, /*share=*/1, layers, seconds);
}

}  // namespace stemma::server
