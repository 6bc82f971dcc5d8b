// Typed reads of one JSON object's fields. Errors: InvalidArgument that begins with the field's path. A field that is
// null counts as absent.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace stemma {

class JsonFields {
 public:
  // `object` is kept by reference; `path` is "" at the root, "rope_scaling." below.
  JsonFields(const nlohmann::json& object, std::string path) : object_(&object), path_(std::move(path)) {}

  const nlohmann::json* Find(const std::string& name) const;  // nullptr: absent or null
  bool IsNull(const std::string& name) const;                 // there, and null

  absl::StatusOr<std::string> String(const std::string& name) const;
  absl::StatusOr<std::string> StringOr(const std::string& name, std::string absent) const;
  absl::StatusOr<bool> BoolOr(const std::string& name, bool absent) const;
  absl::StatusOr<double> Number(const std::string& name) const;  // finite
  absl::StatusOr<double> NumberOr(const std::string& name, double absent) const;
  // A whole number in [min, max].
  absl::StatusOr<int64_t> Int(const std::string& name, int64_t min, int64_t max) const;
  absl::StatusOr<int64_t> IntOr(const std::string& name, int64_t absent, int64_t min, int64_t max) const;
  absl::StatusOr<JsonFields> Object(const std::string& name) const;

  // InvalidArgument "<path><name>: <message>".
  absl::Status Error(const std::string& name, const std::string& message) const;

 private:
  absl::Status Missing(const std::string& name) const { return Error(name, "is missing"); }

  const nlohmann::json* object_;
  std::string path_;
};

}  // namespace stemma
