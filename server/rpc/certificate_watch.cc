#include "server/rpc/certificate_watch.h"

#include <optional>
#include <utility>

#include "common/rpc/tls_check.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(5);  // as gRPC does (common/rpc/tls_credentials.cc)

}  // namespace

CertificateWatch::CertificateWatch(TlsFiles files, const Clock& clock) : files_(std::move(files)), clock_(clock) {
  Look();
  thread_ = std::thread([this] {
    while (!stopped_.AwaitWithin(kLookEvery)) Look();
  });
}

CertificateWatch::~CertificateWatch() {
  stopped_.Set();
  thread_.join();
}

CertificateState CertificateWatch::State() const {
  MutexLock lock(&mutex_);
  return state_;
}

void CertificateWatch::Look() {
  const absl::Time now = clock_.Now();
  const absl::StatusOr<TlsValidities> found = CheckTlsFiles(files_, TlsSide::kServer, now);
  {
    MutexLock lock(&mutex_);
    state_.whole = found.ok();
    if (found.ok()) {
      state_.cert_ends = found->cert.ends;
      state_.ca_ends = found->ca.ends;
    }
  }
  const std::optional<CertificateNews::Line> line = news_.Look(found, now);
  if (!line) return;
  if (line->is_warning) {
    LOG(WARNING) << line->text;
  } else {
    LOG(INFO) << line->text;
  }
}

}  // namespace stemma::server
