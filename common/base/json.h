// JSON that strangers wrote: parsed with bounds, no exception leaves. Used for config.json, safetensors headers and
// indexes, and trace lines.
//
// Beyond RFC 8259: a key that repeats within its object is an error, as are invalid UTF-8, numbers that no double
// holds, nesting deeper than `max_depth`, and anything after the value. Errors: InvalidArgument, with the byte
// position.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace stemma {

struct JsonLimits {
  int max_depth = 32;
  int64_t max_values = int64_t{1} << 28;  // values and keys in total
};

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// "a string", "an object", ...: for messages.
std::string JsonTypeName(const nlohmann::json& value);

// The value's text in ASCII, on one line, shortened: for messages, which hold what strangers wrote only in this form.
std::string JsonExcerpt(const nlohmann::json& value);

}  // namespace stemma
