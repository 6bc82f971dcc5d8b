// SHA-256, and the digest by which a repeated request is recognised.
//
// The walk over an UpdateActor payload: fields that are present, in the order of their numbers: the number as uint32;
// then integers, booleans and enums as 8 bytes, floats by their bits, strings and bytes with a uint64 length before
// them; messages recursively, closed by the number 0; repeated fields with a uint64 count before them. All
// little-endian. A group is hashed apart (its own fields, then its rollouts in order), so the digest does not depend on
// how a sender cuts groups into messages. Left out: request_id, wait_ms, expected_lineage and trace_step, which do not
// say what is computed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "google/protobuf/repeated_field.h"
#include "stemma/v1/training.pb.h"

namespace stemma {

class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void Update(std::string_view bytes);
  void UpdateInteger(uint64_t value);  // 8 bytes, little-endian
  // Once; nothing may follow.
  std::array<uint8_t, 32> Finish();
  std::string FinishHex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Thread safety: none.
class PayloadDigest {
 public:
  explicit PayloadDigest(const v1::UpdateHeader& header);

  // A uid that is new to this payload.
  void AddGroup(const v1::PromptGroup& group);
  // Continues a group that was added; false if there is none.
  bool AddRollouts(const std::string& uid, const google::protobuf::RepeatedPtrField<v1::Rollout>& rollouts);
  // 64 hexadecimal digits. Once; nothing may follow.
  std::string FinishHex();

 private:
  Sha256 header_;
  std::vector<Sha256> groups_;
  std::unordered_map<std::string, size_t> group_of_uid_;
};

std::string DigestOf(const v1::UpdateHeader& header, const std::vector<v1::PromptGroup>& groups);

}  // namespace stemma
