#include "common/base/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace stemma {
namespace {

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

// Adds a repeated field; the only messages that a payload repeats are rollouts.
void WalkRepeated(const Message& message, const FieldDescriptor& field, Sha256& sha) {
  CHECK_EQ(field.cpp_type(), FieldDescriptor::CPPTYPE_MESSAGE) << field.full_name();
  const Reflection& reflection = *message.GetReflection();
  const int count = reflection.FieldSize(message, &field);
  sha.UpdateInteger(static_cast<uint64_t>(count));
  for (int i = 0; i < count; ++i) Walk(reflection.GetRepeatedMessage(message, &field, i), sha);
}

void Walk(const Message& message, Sha256& sha) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);  // those present, by number
  for (const FieldDescriptor* field : fields) {
    UpdateNumber(static_cast<uint32_t>(field->number()), sha);
    if (field->is_repeated()) {
      WalkRepeated(message, *field, sha);
    } else {
      WalkSingle(message, *field, sha);
    }
  }
  UpdateNumber(0, sha);
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

std::array<uint8_t, 32> Sha256::Finish() {
  std::array<uint8_t, 32> digest;
  CHECK_EQ(EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr), 1);
  return digest;
}

std::string Sha256::FinishHex() {
  const std::array<uint8_t, 32> digest = Finish();
  return absl::BytesToHexString(std::string(digest.begin(), digest.end()));
}

PayloadDigest::PayloadDigest(const v1::UpdateHeader& header) {
  v1::UpdateHeader walked = header;
  walked.mutable_request()->clear_request_id();
  walked.mutable_request()->clear_wait_ms();
  walked.mutable_request()->clear_expected_lineage();
  walked.clear_trace_step();
  Walk(walked, header_);
}

void PayloadDigest::AddGroup(const v1::PromptGroup& group) {
  CHECK(group_of_uid_.emplace(group.uid(), groups_.size()).second) << group.uid() << " was added before";
  Sha256& sha = groups_.emplace_back();
  UpdateText(group.uid(), sha);
  UpdateText(group.prompt_tokens(), sha);
  sha.UpdateInteger(group.has_stat_group() ? 1 : 0);
  UpdateText(group.stat_group(), sha);
  AddRollouts(group.uid(), group.rollouts());
}

bool PayloadDigest::AddRollouts(const std::string& uid,
                                const google::protobuf::RepeatedPtrField<v1::Rollout>& rollouts) {
  const auto it = group_of_uid_.find(uid);
  if (it == group_of_uid_.end()) return false;
  for (const v1::Rollout& rollout : rollouts) Walk(rollout, groups_[it->second]);
  return true;
}

std::string PayloadDigest::FinishHex() {
  header_.UpdateInteger(groups_.size());
  for (Sha256& group : groups_) {
    const std::array<uint8_t, 32> digest = group.Finish();
    header_.Update({reinterpret_cast<const char*>(digest.data()), digest.size()});
  }
  return header_.FinishHex();
}

std::string DigestOf(const v1::UpdateHeader& header, const std::vector<v1::PromptGroup>& groups) {
  PayloadDigest digest(header);
  for (const v1::PromptGroup& group : groups) digest.AddGroup(group);
  return digest.FinishHex();
}

}  // namespace stemma
