// What gRPC encrypts a connection with: TLS where files are given, plaintext where none are.
//
// The files are read again when they change, so that a renewed certificate is taken without a restart; connections that
// there are go on. Where one cannot be read what was read before stays in force; where one holds something else, or
// does not fit its key, no handshake succeeds until it does. TLS has version 1.2 or 1.3. A client takes a server for
// the one it means where the certificate has the host of the address, a name or an IP, among its subject alternative
// names.
#pragma once

#include <memory>

#include "common/base/tls_files.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace stemma {

// REQUIRES: CheckTlsFiles has passed `files`.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const TlsFiles& files);
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const TlsFiles& files);

}  // namespace stemma
