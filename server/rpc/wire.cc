#include "server/rpc/wire.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/admission/decoded_bytes.h"
#include "common/base/error.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/proto_buffer_writer.h"

namespace stemma::server {
namespace {

// Texts and options that are sent honestly take a few times their bytes.
constexpr uint64_t kDecodedTimesMax = 16;

absl::Status TooLarge(const google::protobuf::Message& request, const std::string& what) {
  return MakeError(Reason::kLimitExceeded, absl::StrCat("this ", request.GetDescriptor()->name(), " ", what,
                                                        "; nothing was done: send a smaller one"));
}

}  // namespace

absl::Status DecodeRequest(const grpc::ByteBuffer& bytes, size_t bytes_max, google::protobuf::Message& request) {
  if (bytes.Length() > bytes_max) {
    return TooLarge(request, absl::StrCat("has ", bytes.Length(), " bytes, the limit is ", bytes_max));
  }
  grpc::ByteBuffer read = bytes;  // shares what it holds; reading takes a buffer of one's own
  {
    grpc::ProtoBufferReader reader(&read);
    const uint64_t decoded = DecodedBytes(*request.GetDescriptor(), reader);
    if (decoded > kDecodedTimesMax * bytes_max) {
      return TooLarge(request, absl::StrCat("would take ", decoded, " bytes of memory, the limit is ",
                                            kDecodedTimesMax * bytes_max));
    }
  }
  grpc::ProtoBufferReader reader(&read);
  if (request.ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return MakeError(Reason::kInvalidRequest, absl::StrCat("what was sent is no ", request.GetDescriptor()->name(),
                                                         " (its texts must be UTF-8); nothing was done"));
}

grpc::Status Encode(const google::protobuf::Message& message, grpc::ByteBuffer& bytes) {
  bytes.Clear();
  bool own = false;
  return grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, &bytes, &own);
}

}  // namespace stemma::server
