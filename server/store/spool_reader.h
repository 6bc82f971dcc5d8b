// Reads the file of a spooled request (spool_writer.h) and gives back what was written. Nothing is allocated before the
// file's size has been held against the journal's, and no message is longer than what is left of the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/admission/normalization.h"
#include "common/admission/training_request.h"
#include "common/base/file.h"
#include "stemma/internal/v1/journal.pb.h"

namespace stemma::server {

struct SpooledRequest {
  std::shared_ptr<const TrainingRequest> request;
  v1::Plan plan;
  uint32_t repeats = 1;
  v1::PlanReport report;
  v1::Mesh mesh;                         // for which the plan was made
  std::vector<StepNormalization> steps;  // one for each of plan.steps
};

// `row`: bytes and digest that the journal has of it. Errors: CORRUPT_SPOOL - anything differs; those of the disk.
absl::StatusOr<SpooledRequest> ReadSpooled(const RegularFile& file, const std::string& path,
                                           const internal::v1::SpoolFile& row, uint64_t message_bytes_max);

// Returns what the file begins with where that is the magic of a spooled request, of this version or another; else "".
std::string SpoolMagicOf(const RegularFile& file);

}  // namespace stemma::server
