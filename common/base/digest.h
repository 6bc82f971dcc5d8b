// SHA-256, and the digest by which a repeated request is recognised.
//
// The walk over an UpdateActor payload: fields that are present, in the order of their numbers: the number as uint32;
// then integers, booleans and enums as 8 bytes, floats by their bits, strings and bytes with a uint64 length before
// them; messages recursively, closed by the number 0; repeated fields with a uint64 count before them. All
// little-endian. A group is hashed apart (its own fields, then its rollouts in order), however it was cut
// into messages. Left out: request_id, wait_ms, expected_lineage and trace_step, which do not
// say what is computed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stemma/v1/training.pb.h"

namespace stemma {

using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void Update(std::string_view bytes);
  void UpdateInteger(uint64_t value);  // 8 bytes, little-endian
  // Once; nothing may follow.
  Sha256Digest Finish();
  std::string FinishHex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Returns 64 hexadecimal digits. A large payload is hashed by up to four threads, a group by one; the digest does not
// depend on them.
std::string DigestOf(const v1::UpdateHeader& header, const std::vector<v1::PromptGroup>& groups);

}  // namespace stemma
