#include "server/coordinator/calibration_file.h"

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/json_fields.h"
#include "common/base/status_macros.h"
#include "common/base/temporary_file.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

constexpr uint64_t kMaxFileBytes = 64 << 20;
constexpr int64_t kVersion = 3;  // of the units of work; another one is measured anew
constexpr const char* kPhases[] = {"prefix_forward", "suffix", "prefix_backward"};

std::string PathIn(const std::string& data_directory) { return absl::StrCat(data_directory, "/calibration.json"); }

// Work and seconds of phase i.
std::pair<Work*, double*> Phase(CalibrationSample& sample, int i) {
  if (i == 0) return {&sample.work.prefix_forward, &sample.seconds.prefix_forward};
  if (i == 1) return {&sample.work.suffix, &sample.seconds.suffix};
  return {&sample.work.prefix_backward, &sample.seconds.prefix_backward};
}

nlohmann::json JsonOf(CalibrationSample sample) {
  nlohmann::json json = {{"apply_s", sample.apply_s}};
  for (int i = 0; i < 3; ++i) {
    const auto [work, seconds] = Phase(sample, i);
    nlohmann::json& phase = json[kPhases[i]];
    phase["seconds"] = *seconds;
    for (int rate = 0; rate < kNumRates; ++rate) {
      const double units = (*work)[static_cast<Rate>(rate)];
      if (units > 0) phase[kRateNames[static_cast<size_t>(rate)]] = units;
    }
  }
  return json;
}

absl::StatusOr<CalibrationSample> SampleOf(const nlohmann::json& json, const std::string& path) {
  CalibrationSample sample;
  const JsonFields fields(json, path);
  ASSIGN_OR_RETURN(sample.apply_s, fields.Number("apply_s"));
  for (int i = 0; i < 3; ++i) {
    ASSIGN_OR_RETURN(const JsonFields phase, fields.Object(kPhases[i]));
    const auto [work, seconds] = Phase(sample, i);
    ASSIGN_OR_RETURN(*seconds, phase.Number("seconds"));
    for (int rate = 0; rate < kNumRates; ++rate) {
      ASSIGN_OR_RETURN((*work)[static_cast<Rate>(rate)], phase.NumberOr(kRateNames[static_cast<size_t>(rate)], 0));
    }
  }
  return sample;
}

}  // namespace

std::string CalibrationText(const CalibrationBook& book) {
  nlohmann::json json = {{"version", kVersion}, {"machines", nlohmann::json::object()}};
  for (const auto& [key, samples] : book) {
    nlohmann::json& list = json["machines"][key] = nlohmann::json::array();
    for (const CalibrationSample& sample : samples) list.push_back(JsonOf(sample));
  }
  return absl::StrCat(json.dump(1), "\n");
}

absl::StatusOr<CalibrationBook> ParseCalibration(const std::string& text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text));
  if (!json.is_object()) return absl::InvalidArgumentError("not an object");
  const JsonFields fields(json, "");
  RETURN_IF_ERROR(fields.Int("version", kVersion, kVersion).status());
  const nlohmann::json* machines = fields.Find("machines");
  if (machines == nullptr || !machines->is_object()) return fields.Error("machines", "is not an object");
  CalibrationBook book;
  for (const auto& [key, list] : machines->items()) {
    if (!list.is_array()) return fields.Error("machines", "holds what is not a list");
    std::vector<CalibrationSample>& samples = book[key];
    for (const nlohmann::json& item : list) {
      if (!item.is_object()) return fields.Error("machines", "holds a sample that is not an object");
      ASSIGN_OR_RETURN(const CalibrationSample sample, SampleOf(item, "sample."));
      samples.push_back(sample);
    }
  }
  return book;
}

CalibrationBook ReadCalibration(const std::string& data_directory) {
  const std::string path = PathIn(data_directory);
  std::error_code error;
  if (data_directory.empty() || !std::filesystem::exists(path, error)) return {};
  absl::StatusOr<std::string> text = ReadFile(path, kMaxFileBytes);
  absl::StatusOr<CalibrationBook> book = text.ok() ? ParseCalibration(*text) : text.status();
  if (book.ok()) return *std::move(book);
  LOG(WARNING) << path << " is not used, rates are measured anew: " << book.status().message();
  return {};
}

absl::Status WriteCalibration(const std::string& data_directory, const CalibrationBook& book) {
  return ReplaceFile(PathIn(data_directory), CalibrationText(book));
}

}  // namespace stemma::server
