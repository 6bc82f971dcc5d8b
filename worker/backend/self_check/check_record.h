// What a self-check found, kept in the data directory, so that the next start on the same device and libraries does not
// run it again: self_check/NAME.json, replaced whole.
//
// A record says on what it was made; on anything else it is not used. Nothing here keeps a worker from starting.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/self_check/self_check.h"

namespace stemma::worker {

// All that a result depends on.
struct CheckFingerprint {
  std::string device_name = {}, compute_capability = {};  // "NVIDIA H200", "9.0"
  std::string driver = {}, cuda_runtime = {}, torch = {}, cublas = {}, cudnn = {};
  std::string build_id = {};         // of the library that holds the kernels
  std::string checks_build_id = {};  // of the program that holds the checks, and what kernels are compared with
  std::string dtype = {};            // of the run
  CheckShape shape = {};
  std::vector<std::string> faster_attention = {};  // the names of the candidate's

  bool operator==(const CheckFingerprint&) const = default;
};

std::string EncodeRecord(const CheckFingerprint& fingerprint, const std::vector<CheckResult>& results);
// Errors: FailedPrecondition - a record of another version, on something else, or of other kernels; InvalidArgument -
// no record.
absl::StatusOr<std::vector<CheckResult>> DecodeRecord(const std::string& text, const CheckFingerprint& fingerprint);

// Returns nothing where there is no record to use; warns in the log of one that is damaged. data_directory: "" has
// none.
std::optional<std::vector<CheckResult>> ReadRecord(const std::string& data_directory,
                                                   const CheckFingerprint& fingerprint);
// Errors: the directory cannot be written.
absl::Status WriteRecord(const std::string& data_directory, const CheckFingerprint& fingerprint,
                         const std::vector<CheckResult>& results);

}  // namespace stemma::worker
