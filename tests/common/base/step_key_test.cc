#include "common/base/step_key.h"

#include <vector>

#include "gtest/gtest.h"

namespace stemma {
namespace {

using internal::v1::StepKey;

// One key, and one for each field of the message that differs from it in that field alone.
std::vector<StepKey> Keys() {
  std::vector<StepKey> keys(1);
  const auto* fields = StepKey::descriptor();
  for (int i = 0; i < fields->field_count(); ++i) {
    const auto* field = fields->field(i);
    StepKey& key = keys.emplace_back();
    const auto* reflection = StepKey::GetReflection();
    switch (field->cpp_type()) {
      case google::protobuf::FieldDescriptor::CPPTYPE_STRING:
        reflection->SetString(&key, field, "other");
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_UINT32:
        reflection->SetUInt32(&key, field, 7);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_UINT64:
        reflection->SetUInt64(&key, field, 7);
        break;
      default:
        ADD_FAILURE() << field->full_name() << ": the test sets no field of this type";
    }
  }
  return keys;
}

TEST(StepKeyTest, KeysAreTheSameWhereEveryFieldIs) {
  const std::vector<StepKey> keys = Keys();
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < keys.size(); ++j) {
      EXPECT_EQ(SameStepKey(keys[i], keys[j]), i == j) << StepKeyText(keys[i]) << ", " << StepKeyText(keys[j]);
      EXPECT_EQ(StepKeyText(keys[i]) == StepKeyText(keys[j]), i == j) << StepKeyText(keys[i]);
    }
  }
}

}  // namespace
}  // namespace stemma
