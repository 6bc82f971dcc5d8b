#include "server/protocol/refusals.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace stemma::server {
namespace {

constexpr absl::Duration kSayEvery = absl::Minutes(1);

}  // namespace

std::optional<std::string> Refusals::Count(absl::Time now, const absl::Status& answer) {
  if (answer.ok()) return std::nullopt;
  const auto found = std::find_if(kRefusalReasons.begin(), kRefusalReasons.end(),
                                  [&](Reason reason) { return HasReason(answer, reason); });
  if (found == kRefusalReasons.end()) return std::nullopt;
  const auto index = static_cast<size_t>(found - kRefusalReasons.begin());
  ++counts_[index];
  Said& said = said_[index];
  if (now - said.at < kSayEvery) return std::nullopt;
  const uint64_t since = counts_[index] - said.count;
  said = {.at = now, .count = counts_[index]};
  return absl::StrCat("refused with ", std::string(RowOf(*found).name), ": ", std::string(answer.message()),
                      since > 1 ? absl::StrCat(" (", since, " calls since this was said last)") : "");
}

}  // namespace stemma::server
