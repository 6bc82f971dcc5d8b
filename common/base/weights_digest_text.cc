#include "common/base/weights_digest_text.h"

#include "absl/strings/str_cat.h"

namespace stemma {
namespace {

// Before it there was another way, whose digests have no mark: they depended on how ranks held the weights.
constexpr char kMark[] = "2:";
constexpr size_t kDigits = 64;  // of every digest, its mark included

bool HasMark(std::string_view digest) { return digest.substr(0, sizeof(kMark) - 1) == kMark; }

}  // namespace

std::string WeightsDigestText(std::string_view hex) {
  return absl::StrCat(kMark, std::string(hex.substr(0, kDigits - (sizeof(kMark) - 1))));
}

bool WeightsDiffer(std::string_view digest, std::string_view other) {
  const bool known = !digest.empty() && !other.empty() && HasMark(digest) == HasMark(other);
  return known && digest != other;
}

}  // namespace stemma
