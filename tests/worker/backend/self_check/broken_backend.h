// Backends of which one entry is wrong in one way: what the self-check is there to refuse.
#pragma once

#include <string>
#include <vector>

#include "tests/testing/namespaces.h"
#include "worker/backend/backend.h"

namespace stemma::testing {

enum class Fault {
  kScaled,         // every element is 3 % too large
  kUnwritten,      // one element is left as it was
  kNan,            // the last element is NaN
  kThrows,         // as a launch that the device refuses
  kReadsPastEnd,   // the element after an operand's last goes into the result
  kWritesPastEnd,  // the element after the result's last is written
};
inline constexpr Fault kFaults[] = {Fault::kScaled, Fault::kUnwritten,    Fault::kNan,
                                    Fault::kThrows, Fault::kReadsPastEnd, Fault::kWritesPastEnd};

// Makes that entry of a CPU or composed backend wrong. Returns false where the entry cannot be wrong in that way.
// Names: CheckedKernels().
bool Break(const std::string& kernel, Fault fault, Backend& backend);

}  // namespace stemma::testing
