// The text of a checkpoint's manifest.json: protobuf's JSON of CheckpointManifest, with the names of its fields.
//
// DecodeManifest gives back what EncodeManifest was given. A seal in the text, a digest of all its other bytes, shows
// one that changed even where nobody remembers the file's digest, as in a data directory it was copied to. What is
// sealed is still checked: keys that repeat, fields that this program does not know, deep nesting and numbers out of
// range are refused; whether the parts are possible, ArrangeParts says. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "stemma/internal/v1/checkpoint.pb.h"

namespace stemma::server {

inline constexpr uint32_t kManifestVersion = 2;  // 1 had no seal

// Seals it; the seal that `manifest` has is not looked at. Errors: LIMIT_EXCEEDED - the text would be longer than
// kManifestBytesMax (checkpoint_store.h).
absl::StatusOr<std::string> EncodeManifest(const internal::v1::CheckpointManifest& manifest);

// Returns the text with the seal that it must have; a text without exactly one place for a seal as it is.
std::string Sealed(std::string text);

// Returns a manifest without its seal. Errors: InvalidArgument - what is wrong, with the position or the field where it
// is known, and no path; FailedPrecondition - it is whole, and of another version, or of the first one, which has no
// seal.
absl::StatusOr<internal::v1::CheckpointManifest> DecodeManifest(std::string_view text);

}  // namespace stemma::server
