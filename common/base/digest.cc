#include "common/base/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/base/parallel_for.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace stemma {
namespace {

constexpr size_t kThreadsMax = 4;
constexpr size_t kBytesOfThread = 4 << 20;  // a thread takes less to start than a tenth of hashing them

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void UpdateNumber(uint32_t number, Sha256& sha) {
  char bytes[4];
  std::memcpy(bytes, &number, 4);
  sha.Update({bytes, 4});
}

void UpdateText(std::string_view text, Sha256& sha) {
  sha.UpdateInteger(text.size());
  sha.Update(text);
}

void Walk(const Message& message, Sha256& sha);

void WalkSingle(const Message& message, const FieldDescriptor& field, Sha256& sha) {
  const Reflection& reflection = *message.GetReflection();
  std::string scratch;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return sha.UpdateInteger(reflection.GetBool(message, &field) ? 1 : 0);
    case FieldDescriptor::CPPTYPE_UINT32:
      return sha.UpdateInteger(reflection.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return sha.UpdateInteger(reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return sha.UpdateInteger(static_cast<uint64_t>(reflection.GetEnumValue(message, &field)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return sha.UpdateInteger(std::bit_cast<uint64_t>(reflection.GetDouble(message, &field)));
    case FieldDescriptor::CPPTYPE_STRING:
      return UpdateText(reflection.GetStringReference(message, &field, &scratch), sha);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Walk(reflection.GetMessage(message, &field), sha);
    default:
      LOG(FATAL) << "the digest has no rule for " << field.full_name();
  }
}

void Walk(const Message& message, Sha256& sha) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);  // those present, by number
  for (const FieldDescriptor* field : fields) {
    UpdateNumber(static_cast<uint32_t>(field->number()), sha);
    CHECK(!field->is_repeated()) << "the digest has no rule for the repeated " << field->full_name();
    WalkSingle(message, *field, sha);
  }
  UpdateNumber(0, sha);
}

void WalkHeader(const v1::UpdateHeader& header, Sha256& sha) {
  v1::UpdateHeader walked = header;
  walked.mutable_request()->clear_request_id();
  walked.mutable_request()->clear_wait_ms();
  walked.mutable_request()->clear_expected_lineage();
  walked.clear_trace_step();
  Walk(walked, sha);
}

// Adds each field by hand, and not by a walk: one that is added to the message has to be added here.
Sha256Digest DigestOfGroup(const v1::PromptGroup& group) {
  CHECK_EQ(v1::PromptGroup::descriptor()->field_count(), 4) << "the digest leaves a field of PromptGroup out";
  Sha256 sha;
  UpdateText(group.uid(), sha);
  UpdateText(group.prompt_tokens(), sha);
  sha.UpdateInteger(group.has_stat_group() ? 1 : 0);
  UpdateText(group.stat_group(), sha);
  for (const v1::Rollout& rollout : group.rollouts()) Walk(rollout, sha);
  return sha.Finish();
}

size_t ThreadsFor(const std::vector<v1::PromptGroup>& groups) {
  size_t bytes = 0;
  for (const v1::PromptGroup& group : groups) bytes += group.ByteSizeLong();
  return std::min({kThreadsMax, MachineThreads(), 1 + bytes / kBytesOfThread});
}

std::vector<Sha256Digest> DigestsOf(const std::vector<v1::PromptGroup>& groups) {
  std::vector<Sha256Digest> digests(groups.size());
  ParallelFor(groups.size(), ThreadsFor(groups), [&](size_t i) { digests[i] = DigestOfGroup(groups[i]); });
  return digests;
}

}  // namespace

struct Sha256::Context {
  Context() : evp(EVP_MD_CTX_new()) {
    CHECK(evp != nullptr);
    CHECK_EQ(EVP_DigestInit_ex(evp, EVP_sha256(), nullptr), 1);
  }
  ~Context() { EVP_MD_CTX_free(evp); }
  EVP_MD_CTX* evp;
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::Update(std::string_view bytes) {
  CHECK_EQ(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()), 1);
}

void Sha256::UpdateInteger(uint64_t value) {
  char bytes[8];
  std::memcpy(bytes, &value, 8);
  Update({bytes, 8});
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  CHECK_EQ(EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr), 1);
  return digest;
}

std::string Sha256::FinishHex() {
  const Sha256Digest digest = Finish();
  return absl::BytesToHexString(std::string(digest.begin(), digest.end()));
}

std::string DigestOf(const v1::UpdateHeader& header, const std::vector<v1::PromptGroup>& groups) {
  Sha256 sha;
  WalkHeader(header, sha);
  sha.UpdateInteger(groups.size());
  for (const Sha256Digest& digest : DigestsOf(groups)) {
    sha.Update({reinterpret_cast<const char*>(digest.data()), digest.size()});
  }
  return sha.FinishHex();
}

}  // namespace stemma
