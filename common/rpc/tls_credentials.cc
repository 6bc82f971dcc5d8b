#include "common/rpc/tls_credentials.h"

#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace stemma {
namespace {

constexpr unsigned int kLookEveryS = 5;  // whether the files have changed

std::shared_ptr<grpc::experimental::CertificateProviderInterface> Watch(const TlsFiles& files) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(files.key, files.cert, files.ca,
                                                                              kLookEveryS);
}

// What both sides tell gRPC of the files that there are.
void SetWatched(const TlsFiles& files, grpc::experimental::TlsCredentialsOptions& options) {
  if (!files.cert.empty()) options.watch_identity_key_cert_pairs();
  if (!files.ca.empty()) options.watch_root_certs();
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const TlsFiles& files) {
  if (!files.any()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(Watch(files));
  SetWatched(files, options);
  options.set_cert_request_type(files.ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                 : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const TlsFiles& files) {
  if (!files.any()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watch(files));
  SetWatched(files, options);
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace stemma
