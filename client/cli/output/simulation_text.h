// What `stemma-server simulate` answers, as `stemma simulate` shows it.
#pragma once

#include <ostream>

#include "client/cli/output/records.h"

namespace stemma::cli {

// Prints what the numbers are of, then a line for each mesh that is possible, with the parts of its time in percent,
// then the others with their reasons. `answer` has `model`, `trace`, and what server/main/simulate.cc writes.
void WriteSimulation(const OutputOptions& options, const Record& answer, std::ostream& out);

}  // namespace stemma::cli
