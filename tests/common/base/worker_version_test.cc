#include "common/base/worker_version.h"

#include <regex>
#include <set>
#include <string>

#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptorProto;
using google::protobuf::FileDescriptorProto;

FileDescriptorProto FileOf(const std::string& name, const std::string& field, int number) {
  FileDescriptorProto file;
  file.set_name(name);
  file.set_syntax("proto3");
  auto& message = *file.add_message_type();
  message.set_name("M" + name.substr(0, 1));
  FieldDescriptorProto& of = *message.add_field();
  of.set_name(field);
  of.set_number(number);
  of.set_type(FieldDescriptorProto::TYPE_INT32);
  of.set_label(FieldDescriptorProto::LABEL_OPTIONAL);
  return file;
}

// The digest of a file that imports another, whose one field has this name and number.
std::string DigestWith(const std::string& imported_field, int number) {
  DescriptorPool pool;
  const auto* imported = pool.BuildFile(FileOf("b.proto", imported_field, number));
  FileDescriptorProto file = FileOf("a.proto", "own", 1);
  file.add_dependency(imported->name());
  return MessagesDigest(*pool.BuildFile(file));
}

TEST(WorkerVersionTest, ItIsTheNumberAndADigestOfTheMessages) {
  EXPECT_TRUE(std::regex_match(WorkerVersion(), std::regex("\\d+\\.\\d+\\.\\d+, messages [0-9a-f]{12}")))
      << WorkerVersion();
  const auto* file = internal::v1::WorkerMessage::descriptor()->file();
  EXPECT_TRUE(WorkerVersion().ends_with(MessagesDigest(*file))) << WorkerVersion();
}

TEST(WorkerVersionTest, AFieldOfAnImportedFileCounts) {
  const std::set<std::string> digests = {DigestWith("x", 1), DigestWith("x", 2), DigestWith("y", 1)};
  EXPECT_EQ(digests.size(), 3u);
  EXPECT_TRUE(digests.contains(DigestWith("x", 1))) << "the same files have the same one";
}

}  // namespace
}  // namespace stemma
