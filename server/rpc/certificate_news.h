// What to say in the log of the files of TLS while a server runs: that new connections fail, and why; that they are
// whole again; and in time that one ends. A decision: reads no file and no clock.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls_check.h"

namespace stemma::server {

class CertificateNews {
 public:
  struct Line {
    bool is_warning = false;
    std::string text;
  };
  // `files`: what CheckTlsFiles says of them at `now`. None: nothing new.
  std::optional<Line> Look(const absl::StatusOr<TlsValidities>& files, absl::Time now);

 private:
  // Whether it is time to warn that a certificate ends; counts as done then.
  static bool IsDue(const TlsValidity& validity, absl::Time now, absl::Time& warned_at);

  std::string problem_;  // that was said last; empty: there is none
  absl::Time warned_of_cert_ = absl::InfinitePast(), warned_of_ca_ = absl::InfinitePast();
};

}  // namespace stemma::server
