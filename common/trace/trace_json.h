// One trace line's JSON to protos and back: the proto's snake_case names, enums as their words, arrays as lists of
// numbers or base64 of the array's bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

struct TraceRequest {
  v1::UpdateHeader header;
  std::vector<v1::PromptGroup> groups;
};

enum class TraceArrays { kNumbers, kBase64 };

// Errors: InvalidArgument that begins with the field's path: unknown fields, wrong types, numbers that the array's
// element does not hold, a response_mask whose length is not the response's.
absl::StatusOr<TraceRequest> ParseTraceRequest(std::string_view json);

// One line, without its end. Numbers are the shortest that read back as the same bits. Errors: InvalidArgument - a
// number that JSON does not hold (not finite), with its path.
absl::StatusOr<std::string> FormatTraceRequest(const TraceRequest& request, TraceArrays arrays);

}  // namespace stemma
