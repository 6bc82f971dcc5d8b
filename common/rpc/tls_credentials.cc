#include "common/rpc/tls_credentials.h"

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/rpc/grpc_log.h"
#include "common/rpc/tls_check.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace stemma {
namespace {

constexpr unsigned int kLookEveryS = 5;  // whether the files have changed

std::shared_ptr<grpc::experimental::CertificateProviderInterface> Watch(const TlsFiles& files) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(files.key, files.cert, files.ca,
                                                                              kLookEveryS);
}

// Looks at the end of a client's certificate once more, which OpenSSL does not where a session is resumed.
class ValidNow final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    const grpc::string_ref pem = request->peer_cert();
    const absl::Status valid = CheckPeerCertificate({pem.data(), pem.size()}, RealClock().Now());
    if (!valid.ok()) {
      const grpc::string_ref name = request->common_name();
      LogRefusedHandshake(absl::StrCat(std::string(name.data(), name.size()), ": ", valid.message()));
      *status = {grpc::StatusCode::UNAUTHENTICATED, std::string(valid.message())};
    }
    return true;  // it was done at once
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}
};

// Tells gRPC of the files that there are, for either side.
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
  if (!files.ca.empty()) {
    options.set_certificate_verifier(grpc::experimental::ExternalCertificateVerifier::Create<ValidNow>());
  }
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
