#include "server/rpc/request_reader.h"

#include <malloc.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/decoded_bytes.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace stemma::server {
namespace {

// From so many bytes on, what was dropped goes back to the system at once.
constexpr uint64_t kDroppedBytes = 1 << 20;

}  // namespace

RequestReader::RequestReader(TrainingRequest::Kind kind, const RequestRules& rules, Hooks hooks)
    : hooks_(std::move(hooks)),
      builder_(kind, rules.limits, rules.model, rules.numbers),
      share_(rules.receiving),
      idle_ms_(rules.limits.stream_idle_ms()),
      timer_(absl::Milliseconds(rules.limits.stream_idle_ms())) {}

void RequestReader::Start(std::weak_ptr<void> call) {
  call_ = std::move(call);
  ReadNext();
}

void RequestReader::ReadNext() {
  timer_.Start([this, call = call_] {
    if (const std::shared_ptr<void> alive = call.lock()) {
      End(MakeError(Reason::kStreamIdle,
                    absl::StrCat("the stream brought nothing for ", idle_ms_,
                                 " ms (limits.stream_idle_ms); nothing happened, the request_id is free")));
    }
  });
  hooks_.start_read(&part_);
}

void RequestReader::OnReadDone(bool ok) {
  timer_.Stop();
  if (ended_) return;
  if (ok) {
    if (const absl::Status status = Take(); !status.ok()) return Refuse(status);
    return ReadNext();
  }
  auto request = builder_.Finish();
  share_.Release();  // from here on the request counts as work in flight
  if (!request.ok()) return Refuse(request.status());
  if (!ended_.exchange(true)) hooks_.submit(GivenBackOnceDropped(*std::move(request)));
}

absl::StatusOr<v1::GroupPart> RequestReader::Decode() {
  {
    grpc::ProtoBufferReader bytes(&part_);
    RETURN_IF_ERROR(share_.Set(builder_.kept_bytes() + DecodedBytes(*v1::GroupPart::descriptor(), bytes)));
  }
  v1::GroupPart part;
  if (grpc::SerializationTraits<v1::GroupPart>::Deserialize(&part_, &part).ok()) return part;
  return MakeError(
      Reason::kShortStream,
      "a part is cut, or no GroupPart at all (its texts must be UTF-8); nothing happened, the request_id is free");
}

absl::Status RequestReader::Take() {
  const uint64_t held = builder_.kept_bytes() + part_.Length();
  absl::StatusOr<v1::GroupPart> part = Decode();
  part_.Clear();
  RETURN_IF_ERROR(part.status());
  const absl::Status status = builder_.Add(*part);
  part = v1::GroupPart();  // what was not taken is not kept until the next part
  // gRPC read it in pieces that lie all over the heap, which would keep them.
  if (held > builder_.kept_bytes() + kDroppedBytes) malloc_trim(0);
  RETURN_IF_ERROR(status);
  return share_.Set(builder_.kept_bytes());
}

void RequestReader::Refuse(const absl::Status& status) {
  std::shared_ptr<const TrainingRequest> request = builder_.Refused(status);
  if (request == nullptr) return End(status);
  share_.Release();
  if (!ended_.exchange(true)) hooks_.submit(std::move(request));
}

void RequestReader::End(const absl::Status& status) {
  if (!ended_.exchange(true)) hooks_.refuse(status);
}

}  // namespace stemma::server
