// The files by which one side of a connection knows itself and the other in TLS: PEM, read again when they change.
//
// A server has a certificate and its key, and may ask clients for theirs, signed by a CA. A client has the CA of its
// server, and may have a certificate and a key of its own. No files: plaintext. common/rpc/tls_check.h checks them.
#pragma once

#include <string>

namespace stemma {

// Names of the options, in programs and in errors.
inline constexpr char kTlsCertOption[] = "--tls-cert", kTlsKeyOption[] = "--tls-key", kTlsCaOption[] = "--tls-ca";

struct TlsFiles {
  std::string cert;  // this side's certificate, then those between it and its CA's
  std::string key;   // the certificate's private key, not encrypted
  std::string ca;    // of those whose signature the other side's certificate must have

  bool any() const { return !cert.empty() || !key.empty() || !ca.empty(); }
};

}  // namespace stemma
