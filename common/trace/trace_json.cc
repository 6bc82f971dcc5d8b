#include "common/trace/trace_json.h"

#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/arrays.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace stemma {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::json;
using nlohmann::ordered_json;

enum class Element { kInt32, kFloat32, kBit };

Element ElementOf(const FieldDescriptor& field) {
  if (field.name() == "prompt_tokens" || field.name() == "response_tokens") return Element::kInt32;
  return field.name() == "response_mask" ? Element::kBit : Element::kFloat32;
}

absl::Status Invalid(const std::string& path, const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat(path.empty() ? "line" : path, ": ", message));
}

std::string Join(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

// ---------------------------------------------------------------------------------------------------------------
// reading

absl::Status WrongType(const std::string& path, const std::string& wanted, const json& value) {
  return Invalid(path, absl::StrCat("must be ", wanted, ", is ", JsonExcerpt(value)));
}

absl::StatusOr<std::string> PackTokens(const json& list, const std::string& path) {
  std::vector<int32_t> values;
  values.reserve(list.size());
  for (const json& item : list) {
    const bool fits = item.is_number_unsigned() ? item.get<uint64_t>() <= uint64_t{INT32_MAX}
                                                : item.is_number_integer() && item.get<int64_t>() >= INT32_MIN;
    if (!fits) return WrongType(absl::StrCat(path, "[", values.size(), "]"), "a token id", item);
    values.push_back(static_cast<int32_t>(item.get<int64_t>()));
  }
  return PackArray(values);
}

absl::StatusOr<std::string> PackFloats(const json& list, const std::string& path) {
  std::vector<float> values;
  values.reserve(list.size());
  for (const json& item : list) {
    if (!item.is_number() || std::abs(item.get<double>()) > FLT_MAX) {
      return WrongType(absl::StrCat(path, "[", values.size(), "]"), "a float32 number", item);
    }
    values.push_back(static_cast<float>(item.get<double>()));
  }
  return PackArray(values);
}

absl::StatusOr<std::string> PackBits(const json& list, const std::string& path) {
  std::vector<bool> bits;
  for (const json& item : list) {
    const bool is_bit = item.is_boolean() || (item.is_number_unsigned() && item.get<uint64_t>() <= 1);
    if (!is_bit) return WrongType(absl::StrCat(path, "[", bits.size(), "]"), "0 or 1", item);
    bits.push_back(item.is_boolean() ? item.get<bool>() : item.get<uint64_t>() == 1);
  }
  return PackMask(bits);
}

absl::StatusOr<std::string> PackBase64(const json& value, Element element, const std::string& path) {
  std::string bytes;
  if (!absl::Base64Unescape(value.get_ref<const std::string&>(), &bytes)) return Invalid(path, "is not base64");
  if (element != Element::kBit && bytes.size() % 4 != 0) {
    return Invalid(path, absl::StrCat("its base64 holds ", bytes.size(), " bytes, not a multiple of 4"));
  }
  return bytes;
}

absl::StatusOr<std::string> PackValue(const json& value, Element element, const std::string& path) {
  if (value.is_string()) return PackBase64(value, element, path);
  if (!value.is_array()) return WrongType(path, "a list of numbers or base64", value);
  switch (element) {
    case Element::kInt32:
      return PackTokens(value, path);
    case Element::kFloat32:
      return PackFloats(value, path);
    case Element::kBit:
      return PackBits(value, path);
  }
  LOG(FATAL) << "element " << static_cast<int>(element);
}

absl::Status ReadMessage(const json& value, const std::string& path, Message& message);

absl::Status ReadEnum(const json& value, const std::string& path, const FieldDescriptor& field, Message& message) {
  const auto& words = *field.enum_type();
  std::string known;
  for (int i = 0; i < words.value_count(); ++i) {
    if (words.value(i)->number() == 0) continue;
    absl::StrAppend(&known, known.empty() ? "" : ", ", words.value(i)->name());
    if (value.is_string() && value.get_ref<const std::string&>() == words.value(i)->name()) {
      message.GetReflection()->SetEnum(&message, &field, words.value(i));
      return absl::OkStatus();
    }
  }
  return WrongType(path, absl::StrCat("one of ", known), value);
}

absl::Status ReadText(const json& value, const std::string& path, const FieldDescriptor& field, Message& message) {
  if (field.type() == FieldDescriptor::TYPE_BYTES) {
    ASSIGN_OR_RETURN(std::string bytes, PackValue(value, ElementOf(field), path));
    message.GetReflection()->SetString(&message, &field, std::move(bytes));
    return absl::OkStatus();
  }
  if (!value.is_string()) return WrongType(path, "a string", value);
  message.GetReflection()->SetString(&message, &field, value.get<std::string>());
  return absl::OkStatus();
}

absl::Status ReadSingle(const json& value, const std::string& path, const FieldDescriptor& field, Message& message) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!value.is_boolean()) return WrongType(path, "true or false", value);
      reflection.SetBool(&message, &field, value.get<bool>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (!value.is_number()) return WrongType(path, "a number", value);
      reflection.SetDouble(&message, &field, value.get<double>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_UINT32:
      if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX) {
        return WrongType(path, "a whole number below 2^32", value);
      }
      reflection.SetUInt32(&message, &field, value.get<uint32_t>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_UINT64:
      if (!value.is_number_unsigned()) return WrongType(path, "a whole number from 0 up", value);
      reflection.SetUInt64(&message, &field, value.get<uint64_t>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_ENUM:
      return ReadEnum(value, path, field, message);
    case FieldDescriptor::CPPTYPE_STRING:
      return ReadText(value, path, field, message);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ReadMessage(value, path, *reflection.MutableMessage(&message, &field));
    default:
      LOG(FATAL) << "traces have no rule for " << field.full_name();
  }
}

absl::Status ReadRepeated(const json& value, const std::string& path, const FieldDescriptor& field, Message& message) {
  if (!value.is_array()) return WrongType(path, "a list", value);
  for (size_t i = 0; i < value.size(); ++i) {
    RETURN_IF_ERROR(
        ReadMessage(value[i], absl::StrCat(path, "[", i, "]"), *message.GetReflection()->AddMessage(&message, &field)));
  }
  return absl::OkStatus();
}

// A list says its length; packed bits do not.
absl::Status CheckMaskList(const json& rollout, const std::string& path, const Message& message) {
  const auto mask = rollout.find("response_mask");
  if (mask == rollout.end() || !mask->is_array()) return absl::OkStatus();
  const auto& parsed = static_cast<const v1::Rollout&>(message);
  const int64_t size = TokenArray(parsed.response_tokens()).size();
  if (static_cast<int64_t>(mask->size()) == size) return absl::OkStatus();
  return Invalid(Join(path, "response_mask"),
                 absl::StrCat("has ", mask->size(), " elements, response_tokens has ", size));
}

absl::Status ReadMessage(const json& value, const std::string& path, Message& message) {
  if (!value.is_object()) return WrongType(path, "an object", value);
  for (const auto& [name, item] : value.items()) {
    const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
    const std::string field_path = Join(path, absl::CEscape(name.substr(0, 80)));
    if (field == nullptr) return Invalid(field_path, "unknown field");
    if (item.is_null()) return Invalid(field_path, "is null: leave the field out");
    const auto* oneof = field->real_containing_oneof();
    if (oneof != nullptr && message.GetReflection()->HasOneof(message, oneof)) {
      return Invalid(field_path, absl::StrCat("only one of ", oneof->name(), " may be sent"));
    }
    RETURN_IF_ERROR(field->is_repeated() ? ReadRepeated(item, field_path, *field, message)
                                         : ReadSingle(item, field_path, *field, message));
  }
  if (message.GetDescriptor() == v1::Rollout::descriptor()) return CheckMaskList(value, path, message);
  return absl::OkStatus();
}

// ---------------------------------------------------------------------------------------------------------------
// writing

// The double whose shortest decimal is the float's shortest decimal; reads back as the same float.
double ShortDecimal(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  double parsed = 0;
  std::from_chars(text, end.ptr, parsed);
  return static_cast<float>(parsed) == value ? parsed : static_cast<double>(value);
}

absl::StatusOr<ordered_json> FloatList(const std::string& bytes, const std::string& path) {
  ordered_json list = ordered_json::array();
  const FloatArray values(bytes);
  for (int64_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return Invalid(absl::StrCat(path, "[", i, "]"), "is not finite");
    list.push_back(ShortDecimal(values[i]));
  }
  return list;
}

class Formatter {
 public:
  explicit Formatter(TraceArrays arrays) : arrays_(arrays) {}

  absl::StatusOr<ordered_json> Format(const Message& message, const std::string& path) const {
    ordered_json object = ordered_json::object();
    std::vector<const FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const std::string field_path = Join(path, field->name());
      ASSIGN_OR_RETURN(object[field->name()], field->is_repeated() ? FormatRepeated(message, *field, field_path)
                                                                   : FormatSingle(message, *field, field_path));
    }
    return object;
  }

 private:
  absl::StatusOr<ordered_json> FormatRepeated(const Message& message, const FieldDescriptor& field,
                                              const std::string& path) const {
    const Reflection& reflection = *message.GetReflection();
    ordered_json list = ordered_json::array();
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      ASSIGN_OR_RETURN(ordered_json item,
                       Format(reflection.GetRepeatedMessage(message, &field, i), absl::StrCat(path, "[", i, "]")));
      list.push_back(std::move(item));
    }
    return list;
  }

  absl::StatusOr<ordered_json> FormatBytes(const Message& message, const FieldDescriptor& field,
                                           const std::string& path) const {
    std::string scratch;
    const std::string& bytes = message.GetReflection()->GetStringReference(message, &field, &scratch);
    const Element element = ElementOf(field);
    if (arrays_ == TraceArrays::kBase64) return ordered_json(absl::Base64Escape(bytes));
    if (element == Element::kFloat32) return FloatList(bytes, path);
    ordered_json list = ordered_json::array();
    if (element == Element::kInt32) {
      for (const int32_t token : TokenArray(bytes).ToVector()) list.push_back(token);
    } else {
      const int64_t size = TokenArray(static_cast<const v1::Rollout&>(message).response_tokens()).size();
      RETURN_IF_ERROR(CheckMask(bytes, size));
      for (int64_t i = 0; i < size; ++i) list.push_back(MaskView(bytes, size)[i] ? 1 : 0);
    }
    return list;
  }

  absl::StatusOr<ordered_json> FormatSingle(const Message& message, const FieldDescriptor& field,
                                            const std::string& path) const {
    const Reflection& reflection = *message.GetReflection();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return ordered_json(reflection.GetBool(message, &field));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        if (!std::isfinite(reflection.GetDouble(message, &field))) return Invalid(path, "is not finite");
        return ordered_json(reflection.GetDouble(message, &field));
      case FieldDescriptor::CPPTYPE_UINT32:
        return ordered_json(reflection.GetUInt32(message, &field));
      case FieldDescriptor::CPPTYPE_UINT64:
        return ordered_json(reflection.GetUInt64(message, &field));
      case FieldDescriptor::CPPTYPE_ENUM:
        return ordered_json(reflection.GetEnum(message, &field)->name());
      case FieldDescriptor::CPPTYPE_STRING:
        if (field.type() == FieldDescriptor::TYPE_BYTES) return FormatBytes(message, field, path);
        return ordered_json(reflection.GetString(message, &field));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Format(reflection.GetMessage(message, &field), path);
      default:
        LOG(FATAL) << "traces have no rule for " << field.full_name();
    }
  }

  const TraceArrays arrays_;
};

}  // namespace

absl::StatusOr<TraceRequest> ParseTraceRequest(std::string_view text) {
  ASSIGN_OR_RETURN(const json root, ParseJson(text));
  if (!root.is_object()) return WrongType("", "an object", root);
  TraceRequest request;
  for (const auto& [name, value] : root.items()) {
    if (name == "header") {
      RETURN_IF_ERROR(ReadMessage(value, "header", request.header));
    } else if (name == "groups") {
      if (!value.is_array()) return WrongType("groups", "a list", value);
      for (size_t i = 0; i < value.size(); ++i) {
        RETURN_IF_ERROR(ReadMessage(value[i], absl::StrCat("groups[", i, "]"), request.groups.emplace_back()));
      }
    } else {
      return Invalid(absl::CEscape(name.substr(0, 80)), "unknown field; a line has header and groups");
    }
  }
  if (!root.contains("header")) return Invalid("header", "is missing");
  if (!root.contains("groups")) return Invalid("groups", "is missing");
  return request;
}

absl::StatusOr<std::string> FormatTraceRequest(const TraceRequest& request, TraceArrays arrays) {
  const Formatter formatter(arrays);
  ordered_json root;
  ASSIGN_OR_RETURN(root["header"], formatter.Format(request.header, "header"));
  ordered_json& groups = root["groups"] = ordered_json::array();
  for (const v1::PromptGroup& group : request.groups) {
    ASSIGN_OR_RETURN(ordered_json item, formatter.Format(group, absl::StrCat("groups[", groups.size(), "]")));
    groups.push_back(std::move(item));
  }
  return root.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

}  // namespace stemma
