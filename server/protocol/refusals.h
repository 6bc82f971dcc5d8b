// Calls that were refused because of the server's machine, which no log of a client's says to whoever runs the server.
// Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/error_reasons.h"

namespace stemma::server {

// What someone has to see to: the disk or the quota of --data, a limit of the process, a mount, memory.
inline constexpr std::array<Reason, 4> kRefusalReasons = {Reason::kDiskFull, Reason::kFileTooLarge, Reason::kReadOnly,
                                                          Reason::kServerMemory};
using RefusalCounts = std::array<uint64_t, kRefusalReasons.size()>;  // in that order, since the server started

class Refusals {
 public:
  // Counts the answer of a call where it is such a refusal. Returns a line for the log: of each reason one a minute,
  // which says how many there were since the one before.
  std::optional<std::string> Count(absl::Time now, const absl::Status& answer);
  const RefusalCounts& counts() const { return counts_; }

 private:
  struct Said {
    absl::Time at = absl::InfinitePast();
    uint64_t count = 0;
  };
  RefusalCounts counts_ = {};
  std::array<Said, kRefusalReasons.size()> said_;
};

}  // namespace stemma::server
