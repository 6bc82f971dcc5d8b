// Messages of calls that gRPC neither decodes nor encodes. A decoded message may take many times its bytes, and whoever
// sends it chooses how many; an encoded answer takes its bytes alone while its client has not read it.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace stemma::server {

// A request of one message: names and options, and for a checkpoint the client's own state.
inline constexpr size_t kQueryBytesMax = 256 << 10;
inline constexpr size_t kSaveBytesMax = 2 << 20;  // client_state has at most 1 MiB

// Decodes a request of one message that has at most so many bytes, and takes at most sixteen times as many in memory.
// Errors: LIMIT_EXCEEDED - it has more; INVALID_REQUEST - it is no such message.
absl::Status DecodeRequest(const grpc::ByteBuffer& bytes, size_t bytes_max, google::protobuf::Message& request);

grpc::Status Encode(const google::protobuf::Message& message, grpc::ByteBuffer& bytes);

}  // namespace stemma::server
