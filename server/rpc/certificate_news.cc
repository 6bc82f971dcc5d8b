#include "server/rpc/certificate_news.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/tls_files.h"

namespace stemma::server {
namespace {

constexpr absl::Duration kWarnsBefore = absl::Hours(7 * 24), kWarnsEvery = absl::Hours(24);

}  // namespace

std::optional<CertificateNews::Line> CertificateNews::Look(const absl::StatusOr<absl::Time>& ends, absl::Time now) {
  if (!ends.ok()) {
    const std::string problem(ends.status().message());
    if (std::exchange(problem_, problem) == problem) return std::nullopt;
    return Line{true, absl::StrCat("new connections may fail in TLS: ", problem)};
  }
  if (!std::exchange(problem_, "").empty()) return Line{false, "the files of TLS are whole again"};
  if (*ends - now > kWarnsBefore || now - warned_at_ < kWarnsEvery) return std::nullopt;
  warned_at_ = now;
  return Line{true, absl::StrCat("the certificate of ", kTlsCertOption, " ends at ",
                                 absl::FormatTime("%Y-%m-%d %H:%M UTC", *ends, absl::UTCTimeZone()),
                                 ": renew it; it is read again without a restart")};
}

}  // namespace stemma::server
