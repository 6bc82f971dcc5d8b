// The calibration in the data directory: calibration.json, replaced whole.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/planner/calibration.h"

namespace stemma::server {

// Returns what the file holds. Empty when there is none; when it cannot be read or is not such a file, too, with a
// warning in the log: rates are then measured anew, and the next write replaces it.
CalibrationBook ReadCalibration(const std::string& data_directory);

// Errors: the directory cannot be written.
absl::Status WriteCalibration(const std::string& data_directory, const CalibrationBook& book);

// The text of the file. Errors: InvalidArgument - not such a text.
std::string CalibrationText(const CalibrationBook& book);
absl::StatusOr<CalibrationBook> ParseCalibration(const std::string& text);

}  // namespace stemma::server
