// A connection to a server, and its small calls. Large streams: submit.h.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/output/command_status.h"
#include "common/base/tls_files.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "stemma/v1/training.grpc.pb.h"

namespace stemma::cli {

struct ConnectionOptions {
  std::string address;
  double connect_timeout_s = 10;
  double timeout_s = 30;
  TlsFiles tls = {};  // none: plaintext
};

// Sets the deadline `seconds` from now.
void SetTimeout(grpc::ClientContext& context, double seconds);

class Connection {
 public:
  // Waits until the server accepts the connection. Errors: kConnect; kUsage - no address.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ConnectionOptions& options);

  v1::TrainingService::Stub& stub() { return *stub_; }

  // A unary call under the options' timeout: Call(&Stub::GetModel, request).
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::TrainingService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                                  Response*),
                                const Request& request) {
    return CallFor(timeout_s_, method, request);
  }

  // The same under another timeout.
  template <typename Request, typename Response>
  absl::StatusOr<Response> CallFor(double timeout_s,
                                   grpc::Status (v1::TrainingService::Stub::*method)(grpc::ClientContext*,
                                                                                     const Request&, Response*),
                                   const Request& request) {
    grpc::ClientContext context;
    SetTimeout(context, timeout_s);
    Response response;
    absl::Status status = RpcStatus(((*stub_).*method)(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

 private:
  Connection(std::shared_ptr<grpc::Channel> channel, double timeout_s);

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::TrainingService::Stub> stub_;
  double timeout_s_;
};

}  // namespace stemma::cli
