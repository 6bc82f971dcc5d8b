#include "common/base/failpoint.h"

namespace stemma {

void Failpoint(std::string_view /*place*/, uint32_t /*rank*/) {}

}  // namespace stemma
