// calibration.json: refused, or written and read back as the same samples, and the rates that are fitted to them are
// numbers that a planner can work with.
#include <cmath>
#include <string>
#include <vector>

#include "glog/logging.h"
#include "server/coordinator/calibration_file.h"
#include "tests/common/model/small_configs.h"
#include "tests/fuzz/fuzz_target.h"

namespace stemma::fuzz {
namespace {

server::CalibrationSample Sample(double size) {
  server::CalibrationSample sample;
  for (int rate = 0; rate < server::kNumRates; ++rate) {
    sample.work.suffix[static_cast<server::Rate>(rate)] = 1.5e9 * size * (rate + 1);
  }
  sample.work.prefix_forward[server::kLinear] = 3e9 * size;
  sample.work.prefix_backward[server::kLinear] = 5e9 * size;
  sample.seconds = {0.1 * size, 0.25 * size, 0.3 * size};
  sample.apply_s = 0.0125;
  return sample;
}

}  // namespace

std::vector<std::string> Seeds() {
  server::CalibrationBook book;
  for (int i = 1; i <= 20; ++i) book["machine"].push_back(Sample(i));
  return {server::CalibrationText(book), server::CalibrationText({})};
}

}  // namespace stemma::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stemma;
  const auto book = server::ParseCalibration({reinterpret_cast<const char*>(data), size});
  if (!book.ok()) return 0;
  const std::string text = server::CalibrationText(*book);
  const auto again = server::ParseCalibration(text);
  CHECK(again.ok()) << again.status();
  CHECK_EQ(server::CalibrationText(*again), text);
  for (const auto& [key, samples] : *book) {
    server::Calibration calibration(server::DefaultRates(RunDtype::kFp32, 1, "cpu"), SmallLlama());
    calibration.AddAll(samples);
    for (const double seconds : calibration.rates().seconds) CHECK(std::isfinite(seconds) && seconds >= 0) << seconds;
  }
  return 0;
}
