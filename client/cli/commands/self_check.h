// A tiny run of everything, for `stemma doctor`: a random model, `stemma local`, the same request by reuse and dense
// with learning rate 0, a step, an export. A minute at most; leaves nothing behind.
#pragma once

#include "client/cli/commands/machine_checks.h"

namespace stemma::cli {

Check SelfCheck();

}  // namespace stemma::cli
