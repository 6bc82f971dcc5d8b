#include "server/protocol/spool_names.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace stemma::server {

std::string SpoolPrefix(uint64_t epoch) { return absl::StrCat(epoch, "-"); }

std::optional<uint64_t> EpochOfSpoolName(std::string_view name) {
  const size_t dash = name.find('-');
  uint64_t epoch = 0, plan = 0;
  if (dash == std::string_view::npos || !absl::SimpleAtoi(std::string(name.substr(0, dash)), &epoch) ||
      !absl::SimpleAtoi(std::string(name.substr(dash + 1)), &plan)) {
    return std::nullopt;
  }
  return epoch;
}

}  // namespace stemma::server
