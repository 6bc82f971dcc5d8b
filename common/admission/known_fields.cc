#include "common/admission/known_fields.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"

namespace stemma {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

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
