// Ties the start-up self-check to its record: reads the record, or checks and writes it, and tells the log.
//
// Called once per process by the library of a device, on the thread that will compute.
#pragma once

#include <string>

#include "worker/backend/self_check/check_record.h"
#include "worker/backend/self_check/self_check.h"

namespace stemma::worker {

// A check that takes longer says so.
inline constexpr double kSelfCheckSecondsMax = 20;

struct SelfCheckOptions {
  Backend candidate;
  Reference reference;           // on the candidate's device
  at::ScalarType dtype;          // of the run
  CheckFingerprint fingerprint;  // its dtype and shape, too
  std::string data_directory;    // empty: no record is read or written
  bool large_cases = true;       // as in CheckSetting
};

// Returns the backend to compute with: the candidate, with what is refused replaced and named in kernels_off. Throws as
// CheckBackend does.
Backend RunSelfCheck(const SelfCheckOptions& options);

}  // namespace stemma::worker
