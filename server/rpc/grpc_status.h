// absl::Status -> grpc::Status: the codes share their numbers, details travel as grpc-status-details-bin.
#pragma once

#include "absl/status/status.h"
#include "common/base/error.h"
#include "grpcpp/support/status.h"

namespace stemma::server {

inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      ToRpcStatus(status).SerializeAsString());
}

}  // namespace stemma::server
