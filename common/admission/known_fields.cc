#include "common/admission/known_fields.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"

namespace stemma {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

std::string Below(const std::string& path, const FieldDescriptor& field) {
  return path.empty() ? field.name() : absl::StrCat(path, ".", field.name());
}

std::string UnknownOfEnum(const Message& message, const FieldDescriptor& field, const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  const int size = field.is_repeated() ? reflection.FieldSize(message, &field) : 1;
  for (int i = 0; i < size; ++i) {
    const int value = field.is_repeated() ? reflection.GetRepeatedEnumValue(message, &field, i)
                                          : reflection.GetEnumValue(message, &field);
    if (field.enum_type()->FindValueByNumber(value) == nullptr) {
      return absl::StrCat("value ", value, " of ", Below(path, field));
    }
  }
  return "";
}

std::string UnknownBelow(const Message& message, const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  const auto& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) return absl::StrCat("field ", unknown.field(0).number(), " of ", path.empty() ? "it" : path);
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  std::string found;
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) found = UnknownOfEnum(message, *field, path);
    const bool holds_messages = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const int size = !holds_messages ? 0 : field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < size && found.empty(); ++i) {
      const Message& inner = field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                  : reflection.GetMessage(message, field);
      found = UnknownBelow(inner, Below(path, *field));
    }
    if (!found.empty()) return found;
  }
  return found;
}

}  // namespace

std::string FirstUnknown(const Message& message) { return UnknownBelow(message, ""); }

void CheckKnownFields(const Message& message, const std::string& path, Violations& violations) {
  const Reflection& reflection = *message.GetReflection();
  const auto& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    violations.Add(path.empty() ? "(message)" : path,
                   absl::StrCat("has field ", unknown.field(0).number(),
                                ", which this server does not know: the client is newer, or the bytes are not ours"));
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string name = path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
    if (!field->is_repeated()) {
      CheckKnownFields(reflection.GetMessage(message, field), name, violations);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      CheckKnownFields(reflection.GetRepeatedMessage(message, field, i), absl::StrCat(name, "[", i, "]"), violations);
    }
  }
}

}  // namespace stemma
