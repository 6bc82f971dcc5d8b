// CertificateWatch: looks at the files of TLS on a thread of its own, and logs what CertificateNews says of them. gRPC
// reads them by itself, and tells nobody of what it finds.
#pragma once

#include <thread>

#include "common/base/clock.h"
#include "common/base/flag.h"
#include "common/base/tls_files.h"

namespace stemma::server {

class CertificateWatch {
 public:
  // `clock` outlives it.
  CertificateWatch(TlsFiles files, const Clock& clock);
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

 private:
  void Run(const TlsFiles& files, const Clock& clock);

  Flag stopped_;
  std::thread thread_;
};

}  // namespace stemma::server
