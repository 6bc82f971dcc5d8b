#include "common/base/worker_version.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "google/protobuf/descriptor.pb.h"
#include "stemma/internal/v1/worker.pb.h"

namespace stemma {
namespace {

using google::protobuf::FileDescriptor;

constexpr size_t kDigits = 12;

// Adds a file and those that it imports, without their comments.
void AddFiles(const FileDescriptor& file, std::map<std::string, std::string>& texts) {
  const auto [text, is_new] = texts.try_emplace(file.name());
  if (!is_new) return;
  google::protobuf::FileDescriptorProto copy;
  file.CopyTo(&copy);
  text->second = copy.SerializeAsString();
  for (int i = 0; i < file.dependency_count(); ++i) AddFiles(*file.dependency(i), texts);
}

}  // namespace

std::string MessagesDigest(const FileDescriptor& file) {
  std::map<std::string, std::string> texts;
  AddFiles(file, texts);
  Sha256 digest;
  for (const auto& [name, text] : texts) {
    digest.UpdateInteger(text.size());
    digest.Update(text);
  }
  return digest.FinishHex().substr(0, kDigits);
}

std::string WorkerVersion() {
  return absl::StrCat(STEMMA_VERSION, ", messages ",
                      MessagesDigest(*internal::v1::WorkerMessage::descriptor()->file()));
}

}  // namespace stemma
