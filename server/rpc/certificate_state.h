// What the last look at the server's files of TLS found: for its metrics.
#pragma once

#include "absl/time/time.h"

namespace stemma::server {

struct CertificateState {
  bool whole = true;  // new connections can be made with the files
  // When those end that were whole last; infinite: there is none.
  absl::Time cert_ends = absl::InfiniteFuture(), ca_ends = absl::InfiniteFuture();
};

}  // namespace stemma::server
