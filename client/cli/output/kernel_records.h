// The fused kernels that workers refused at their start, as records.
#pragma once

#include <vector>

#include "client/cli/output/records.h"
#include "stemma/v1/training.pb.h"

namespace stemma::cli {

// One for each kernel of each rank that is off: rank, kernel, reason.
std::vector<Record> KernelOffRecords(const v1::ServerInfo& info);
std::vector<Column> KernelOffColumns();

}  // namespace stemma::cli
