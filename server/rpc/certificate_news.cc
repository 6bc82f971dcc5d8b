#include "server/rpc/certificate_news.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace stemma::server {
namespace {

constexpr absl::Duration kWarnsBefore = absl::Hours(7 * 24), kWarnsEvery = absl::Hours(24);
constexpr int kLifeOverWarning = 4;  // those who renew by themselves do so earlier, in the last third

std::string EndText(absl::Time ends) {
  return absl::StrCat(" ends at ", CertificateTimeText(ends), ": renew it; it is read again without a restart");
}

}  // namespace

bool CertificateNews::IsDue(const TlsValidity& validity, absl::Time now, absl::Time& warned_at) {
  // One that is renewed every day ends within a week all its life.
  const absl::Duration warns_before = std::min(kWarnsBefore, validity.lasts / kLifeOverWarning);
  if (validity.ends - now > warns_before || now - warned_at < kWarnsEvery) return false;
  warned_at = now;
  return true;
}

std::optional<CertificateNews::Line> CertificateNews::Look(const absl::StatusOr<TlsValidities>& files, absl::Time now) {
  if (!files.ok()) {
    const std::string problem(files.status().message());
    if (std::exchange(problem_, problem) == problem) return std::nullopt;
    return Line{true, absl::StrCat("new connections may fail in TLS: ", problem)};
  }
  if (!std::exchange(problem_, "").empty()) return Line{false, "the files of TLS are whole again"};
  if (IsDue(files->cert, now, warned_of_cert_)) {
    return Line{true, absl::StrCat("the certificate of ", kTlsCertOption, EndText(files->cert.ends))};
  }
  if (IsDue(files->ca, now, warned_of_ca_)) {
    return Line{true, absl::StrCat("the last certificate in ", kTlsCaOption, EndText(files->ca.ends))};
  }
  return std::nullopt;
}

}  // namespace stemma::server
