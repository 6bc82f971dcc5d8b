// What to say in the log of the files of TLS while a server runs: that new connections fail, and why; that they are
// whole again; and in time that one ends. A decision: reads no file and no clock.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/tls_files.h"

namespace stemma::server {

class CertificateNews {
 public:
  struct Line {
    bool is_warning = false;
    std::string text;
  };
  // `files`: what CheckTlsFiles says of them at `now`. None: nothing new.
  std::optional<Line> Look(const absl::StatusOr<TlsValidity>& files, absl::Time now);

 private:
  std::string problem_;                          // that was said last; empty: there is none
  absl::Time warned_at_ = absl::InfinitePast();  // that a certificate ends
};

}  // namespace stemma::server
