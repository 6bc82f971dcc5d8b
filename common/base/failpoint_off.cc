#include "common/base/failpoint.h"

namespace stemma {

void Failpoint(std::string_view /*place*/, uint32_t /*rank*/) {}

bool FailpointFails(std::string_view /*place*/, uint32_t /*rank*/) { return false; }

}  // namespace stemma
