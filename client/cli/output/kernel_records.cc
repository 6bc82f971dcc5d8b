#include "client/cli/output/kernel_records.h"

namespace stemma::cli {

std::vector<Record> KernelOffRecords(const v1::ServerInfo& info) {
  std::vector<Record> records;
  for (const v1::RankInfo& rank : info.ranks()) {
    for (const v1::KernelOff& off : rank.kernels_off()) {
      Record record;
      record["rank"] = rank.rank();
      record["kernel"] = off.kernel();
      record["reason"] = off.reason();
      records.push_back(std::move(record));
    }
  }
  return records;
}

std::vector<Column> KernelOffColumns() {
  return {{"rank", "rank"}, {"kernel", "kernel off", 10, true}, {"reason", "reason", 6, true}};
}

}  // namespace stemma::cli
