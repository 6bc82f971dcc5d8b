// What a copy between device and host that failed becomes, whoever asked for it.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace stemma::worker {

// Throws that the device failed where that is why, else that this copy did (worker/engine/exceptions.h has both).
// `what` names the copy and says why.
[[noreturn]] inline void ThrowCopyFailed(const absl::Status& why, const std::string& what) {
  constexpr int32_t kNoCode = -1;
  if (absl::IsUnavailable(why)) throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, kNoCode, what);
  throw c10::Error({__func__, __FILE__, __LINE__}, what);
}

}  // namespace stemma::worker
