// CertificateWatch: looks at the files of TLS on a thread of its own, logs what CertificateNews says of them, and keeps
// what metrics say. gRPC reads them by itself, and tells nobody of what it finds.
#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/base/clock.h"
#include "common/base/flag.h"
#include "common/base/mutex.h"
#include "common/base/tls_files.h"
#include "server/rpc/certificate_news.h"
#include "server/rpc/certificate_state.h"

namespace stemma::server {

class CertificateWatch {
 public:
  // Looks a first time. `clock` outlives it.
  CertificateWatch(TlsFiles files, const Clock& clock);
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  // Returns what the last look found. Thread safety: any.
  CertificateState State() const;

 private:
  void Look();

  const TlsFiles files_;
  const Clock& clock_;
  CertificateNews news_;  // of one thread at a time
  mutable Mutex mutex_;
  CertificateState state_ ABSL_GUARDED_BY(mutex_);
  Flag stopped_;
  std::thread thread_;
};

}  // namespace stemma::server
