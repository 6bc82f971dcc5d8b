#include "server/rpc/certificate_news.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace stemma::server {
namespace {

constexpr absl::Duration kWarnsBefore = absl::Hours(7 * 24), kWarnsEvery = absl::Hours(24);

}  // namespace

std::optional<CertificateNews::Line> CertificateNews::Look(const absl::StatusOr<TlsValidity>& files, absl::Time now) {
  if (!files.ok()) {
    const std::string problem(files.status().message());
    if (std::exchange(problem_, problem) == problem) return std::nullopt;
    return Line{true, absl::StrCat("new connections may fail in TLS: ", problem)};
  }
  if (!std::exchange(problem_, "").empty()) return Line{false, "the files of TLS are whole again"};
  // One that lasts a day is renewed every day: a week before its end is always.
  const absl::Duration warns_before = std::min(kWarnsBefore, files->lasts / 3);
  if (files->ends - now > warns_before || now - warned_at_ < kWarnsEvery) return std::nullopt;
  warned_at_ = now;
  return Line{true, absl::StrCat("the certificate of ", kTlsCertOption, ", or the last of ", kTlsCaOption, ", ends at ",
                                 absl::FormatTime("%Y-%m-%d %H:%M UTC", files->ends, absl::UTCTimeZone()),
                                 ": renew it; it is read again without a restart")};
}

}  // namespace stemma::server
