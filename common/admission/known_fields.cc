#include "common/admission/known_fields.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"

namespace stemma {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

// Whether a field is a map from words to words or numbers. Walking one by reflection would have protobuf keep a list of
// its entries beside it, as much memory again, as long as the message lives.
bool IsMapOfValues(const FieldDescriptor& field) {
  return field.is_map() && field.message_type()->map_value()->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
}

// Calls `goes_on` with the message and its path, and with every message in it, until it returns false. Returns whether
// it never did.
bool ForEachMessage(const Message& message, const std::string& path,
                    const std::function<bool(const Message&, const std::string&)>& goes_on) {
  if (!goes_on(message, path)) return false;
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || IsMapOfValues(*field)) continue;
    const std::string name = path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
    if (!field->is_repeated()) {
      if (!ForEachMessage(reflection.GetMessage(message, field), name, goes_on)) return false;
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      const Message& inner = reflection.GetRepeatedMessage(message, field, i);
      if (!ForEachMessage(inner, absl::StrCat(name, "[", i, "]"), goes_on)) return false;
    }
  }
  return true;
}

// Returns the number of the first field of the message itself that is not known; 0: there is none.
int UnknownField(const Message& message) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  return unknown.empty() ? 0 : unknown.field(0).number();
}

// Returns the first enum of the message itself whose value has no name: "value 9 of state"; empty: there is none.
std::string UnknownValue(const Message& message) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM) continue;
    const int size = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < size; ++i) {
      const int value = field->is_repeated() ? reflection.GetRepeatedEnumValue(message, field, i)
                                             : reflection.GetEnumValue(message, field);
      if (field->enum_type()->FindValueByNumber(value) == nullptr) {
        return absl::StrCat("value ", value, " of ", field->name());
      }
    }
  }
  return "";
}

}  // namespace

std::string FirstUnknown(const Message& message) {
  std::string found;
  ForEachMessage(message, "", [&](const Message& inner, const std::string& path) {
    const int field = UnknownField(inner);
    found = field > 0 ? absl::StrCat("field ", field) : UnknownValue(inner);
    if (!found.empty() && !path.empty()) absl::StrAppend(&found, " of ", path);
    return found.empty();
  });
  return found;
}

void CheckKnownFields(const Message& message, const std::string& path, Violations& violations) {
  ForEachMessage(message, path, [&](const Message& inner, const std::string& inner_path) {
    if (const int field = UnknownField(inner); field > 0) {
      violations.Add(inner_path.empty() ? "(message)" : inner_path,
                     absl::StrCat("has field ", field,
                                  ", which this server does not know: the client is newer, or the bytes are not ours"));
    }
    return true;
  });
}

}  // namespace stemma
