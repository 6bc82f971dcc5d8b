// What a list of requests tells of one: its status without what grows in its result, at a cost that does not grow.
#include <cstdint>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "server/protocol/request_table.h"
#include "tests/testing/counted_allocations.h"

namespace stemma::server {
namespace {

// Sets every field outside the outcome, those that are added later too.
v1::RequestStatus FilledStatus() {
  v1::RequestStatus status;
  const google::protobuf::Descriptor& type = *status.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const google::protobuf::Reflection& fields = *status.GetReflection();
    if (field.containing_oneof() != nullptr) continue;
    switch (field.cpp_type()) {
      case google::protobuf::FieldDescriptor::CPPTYPE_STRING:
        fields.SetString(&status, &field, field.name());
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_UINT32:
        fields.SetUInt32(&status, &field, static_cast<uint32_t>(i) + 1);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_BOOL:
        fields.SetBool(&status, &field, true);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_ENUM:
        fields.SetEnumValue(&status, &field, v1::DONE);
        break;
      default:
        ADD_FAILURE() << "set " << field.name() << " here, and copy it in ListedStatus";
    }
  }
  return status;
}

v1::RequestStatus DoneStatus(int steps) {
  v1::RequestStatus status = FilledStatus();
  v1::UpdateResult& result = *status.mutable_result();
  result.set_lineage("of the result");
  (*result.mutable_metrics())["loss"] = 0.5;
  result.mutable_effective()->set_ppo_epochs(2);
  result.add_warnings("w");
  for (int i = 0; i < steps; ++i) {
    (*result.add_steps()->mutable_metrics())["loss"] = i;
    result.mutable_plan()->add_steps()->add_clusters();
  }
  return status;
}

// Copies the whole status and takes off it what a list does not tell.
v1::RequestStatus Stripped(v1::RequestStatus status) {
  if (!status.has_result()) return status;
  v1::UpdateResult stripped;
  stripped.set_lineage(status.lineage());
  *stripped.mutable_metrics() = status.result().metrics();
  *status.mutable_result() = std::move(stripped);
  return status;
}

int64_t AllocationsOfAListWith(const v1::RequestStatus& status) {
  return testing::AllocationsOf([&] { ListedStatus(status); }).count;
}

TEST(ListedStatusTest, IsTheStatusWithoutWhatGrowsInItsResult) {
  v1::RequestStatus planned = FilledStatus(), failed = FilledStatus();
  planned.mutable_plan()->add_steps();
  failed.mutable_failure()->set_reason("R");
  for (const v1::RequestStatus& status : {FilledStatus(), planned, failed, DoneStatus(0), DoneStatus(3)}) {
    EXPECT_EQ(ListedStatus(status).SerializeAsString(), Stripped(status).SerializeAsString()) << status.DebugString();
  }
}

TEST(ListedStatusTest, CopiesNoStep) {
  const v1::RequestStatus few = DoneStatus(1), many = DoneStatus(300);
  EXPECT_GT(AllocationsOfAListWith(few), 0) << "allocations are not counted";
  EXPECT_EQ(AllocationsOfAListWith(few), AllocationsOfAListWith(many));
}

}  // namespace
}  // namespace stemma::server
