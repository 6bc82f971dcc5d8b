#include "server/coordinator/lost_messages.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"

namespace stemma::server {
namespace {

// A message whose kind this version does not know has none.
std::string KindOf(const google::protobuf::Message& message) {
  const google::protobuf::OneofDescriptor* kinds = message.GetDescriptor()->oneof_decl(0);
  const google::protobuf::FieldDescriptor* kind = message.GetReflection()->GetOneofFieldDescriptor(message, kinds);
  return kind == nullptr ? "unknown" : kind->name();
}

}  // namespace

bool IsLost(const internal::v1::ServerMessage& message) {
  return FailpointFails(absl::StrCat("send.", KindOf(message)), /*rank=*/0);
}

bool IsLost(const internal::v1::WorkerMessage& message) {
  return FailpointFails(absl::StrCat("receive.", KindOf(message)), /*rank=*/0);
}

}  // namespace stemma::server
