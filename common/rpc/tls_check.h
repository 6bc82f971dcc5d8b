// Whether TLS can be spoken with the files that are given, so that what is wrong is told at the start, by its name:
// gRPC tells nobody, and fails each handshake.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/tls_files.h"

namespace stemma {

enum class TlsSide { kServer, kClient };

struct TlsValidity {
  absl::Time ends = absl::InfiniteFuture();
  absl::Duration lasts = absl::InfiniteDuration();  // from its begin to its end
};

struct TlsValidities {
  TlsValidity cert = {};  // of the first certificate in it
  TlsValidity ca = {};    // of the one in it that ends last
};

// "2030-01-08 12:00 UTC"
std::string CertificateTimeText(absl::Time time);

// Checks the files as they are now: that those are there which the side needs, that they can be read and parsed, that
// the first certificate of `cert` is for this side, and that it and one of `ca` are valid at `now`; that the key is
// that certificate's, that users other than its file's owner and group have no access to it, and that OpenSSL's policy
// takes both. A server's certificate names hosts, and has a key that every client can check. Errors: InvalidArgument -
// names the option, the file and what to do.
absl::StatusOr<TlsValidities> CheckTlsFiles(const TlsFiles& files, TlsSide side, absl::Time now);

// Checks that the other side's certificate, in PEM, is valid at `now`. OpenSSL does so when it first sees one, and not
// when the session is resumed later. Errors: Unauthenticated - when it ended, or begins.
absl::Status CheckPeerCertificate(const std::string& pem, absl::Time now);

}  // namespace stemma
