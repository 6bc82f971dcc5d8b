#include "server/rpc/certificate_watch.h"

#include <optional>
#include <utility>

#include "common/rpc/tls_check.h"
#include "glog/logging.h"
#include "server/rpc/certificate_news.h"

namespace stemma::server {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(5);  // as gRPC does (common/rpc/tls_credentials.cc)

}  // namespace

CertificateWatch::CertificateWatch(TlsFiles files, const Clock& clock)
    : thread_([this, files = std::move(files), &clock] { Run(files, clock); }) {}

CertificateWatch::~CertificateWatch() {
  stopped_.Set();
  thread_.join();
}

void CertificateWatch::Run(const TlsFiles& files, const Clock& clock) {
  CertificateNews news;
  do {
    const absl::Time now = clock.Now();
    const std::optional<CertificateNews::Line> line = news.Look(CheckTlsFiles(files, TlsSide::kServer, now), now);
    if (!line) continue;
    if (line->is_warning) {
      LOG(WARNING) << line->text;
    } else {
      LOG(INFO) << line->text;
    }
  } while (!stopped_.AwaitWithin(kLookEvery));
}

}  // namespace stemma::server
