// SHA-256, and the digest by which a repeated request is recognised.
//
// What is hashed of an UpdateActor payload, all little-endian:
//   - the header, walked: fields that are present, in the order of their numbers: the number as uint32; then integers,
//     booleans and enums as 8 bytes, doubles by their bits, strings and bytes with a uint64 length before them;
//     messages recursively; after the last field the number 0. Nothing that is walked has repeated fields. Left out:
//     request_id, wait_ms, expected_lineage and trace_step, which do not say what is computed.
//   - the number of groups as uint64.
//   - of each group, however it was cut into messages, the 32 bytes of a SHA-256 of its own: uid and prompt_tokens with
//     their lengths, 1 or 0 as uint64 for whether it has a stat_group, this with its length (0 where there is none),
//     and its rollouts in their order, each walked as the header is.
// A journal holds digests: what is hashed never changes but by fields that older requests do not have.
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
