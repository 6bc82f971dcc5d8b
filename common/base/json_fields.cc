#include "common/base/json_fields.h"

#include "absl/strings/str_cat.h"
#include "common/base/json.h"

namespace stemma {

using nlohmann::json;

const json* JsonFields::Find(const std::string& name) const {
  const auto it = object_->find(name);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::IsNull(const std::string& name) const {
  const auto it = object_->find(name);
  return it != object_->end() && it->is_null();
}

absl::Status JsonFields::Error(const std::string& name, const std::string& message) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, name, ": ", message));
}

absl::StatusOr<std::string> JsonFields::String(const std::string& name) const {
  const json* value = Find(name);
  if (value == nullptr) return Missing(name);
  if (!value->is_string()) return Error(name, absl::StrCat("must be a string, is ", JsonExcerpt(*value)));
  return value->get<std::string>();
}

absl::StatusOr<std::string> JsonFields::StringOr(const std::string& name, std::string absent) const {
  if (Find(name) == nullptr) return absent;
  return String(name);
}

absl::StatusOr<bool> JsonFields::BoolOr(const std::string& name, bool absent) const {
  const json* value = Find(name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) return Error(name, absl::StrCat("must be true or false, is ", JsonExcerpt(*value)));
  return value->get<bool>();
}

absl::StatusOr<double> JsonFields::Number(const std::string& name) const {
  const json* value = Find(name);
  if (value == nullptr) return Missing(name);
  if (!value->is_number()) return Error(name, absl::StrCat("must be a number, is ", JsonExcerpt(*value)));
  return value->get<double>();
}

absl::StatusOr<double> JsonFields::NumberOr(const std::string& name, double absent) const {
  if (Find(name) == nullptr) return absent;
  return Number(name);
}

absl::StatusOr<int64_t> JsonFields::Int(const std::string& name, int64_t min, int64_t max) const {
  const json* value = Find(name);
  if (value == nullptr) return Missing(name);
  const bool too_big = value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX};
  if (!value->is_number_integer() || too_big || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    return Error(name, absl::StrCat("must be a whole number from ", min, " to ", max, ", is ", JsonExcerpt(*value)));
  }
  return value->get<int64_t>();
}

absl::StatusOr<int64_t> JsonFields::IntOr(const std::string& name, int64_t absent, int64_t min, int64_t max) const {
  if (Find(name) == nullptr) return absent;
  return Int(name, min, max);
}

absl::StatusOr<JsonFields> JsonFields::Object(const std::string& name) const {
  const json* value = Find(name);
  if (value == nullptr) return Missing(name);
  if (!value->is_object()) return Error(name, absl::StrCat("must be an object, is ", JsonExcerpt(*value)));
  return JsonFields(*value, absl::StrCat(path_, name, "."));
}

}  // namespace stemma
