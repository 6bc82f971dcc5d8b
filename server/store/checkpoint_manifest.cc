#include "server/store/checkpoint_manifest.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "server/store/checkpoint_store.h"

namespace stemma::server {
namespace {

namespace json = google::protobuf::util;

constexpr size_t kExcerptBytesMax = 200;
constexpr char kOtherVersionAdvice[] =
    ": use the program that wrote it, or a newer one, or move the folder away, which gives up the steps since the "
    "checkpoint before it whose requests are not kept";
// The longest manifest that EncodeManifest makes holds fewer: each takes four bytes or more.
constexpr int64_t kValuesMax = int64_t{kManifestBytesMax} / 4;

// A seal is found by its key alone: quotes in names are escaped, so no other value can hold this text.
constexpr std::string_view kSealKey = "\"seal\":\"";
constexpr size_t kSealBytes = 64;
constexpr uint64_t kUnsealedVersion = 1;

// Returns where the digits of the only seal begin; npos: there is none, or more than one.
size_t FindSeal(std::string_view text) {
  const size_t key = text.find(kSealKey);
  if (key == text.npos || text.find(kSealKey, key + 1) != text.npos) return text.npos;
  const size_t begin = key + kSealKey.size(), end = begin + kSealBytes;
  return end < text.size() && text[end] == '"' ? begin : text.npos;
}

std::string SealOf(std::string text, size_t begin) {
  text.replace(begin, kSealBytes, kSealBytes, '0');
  Sha256 sha;
  sha.Update(text);
  return sha.FinishHex();
}

absl::Status CheckSeal(std::string_view text) {
  const size_t begin = FindSeal(text);
  if (begin == text.npos) return absl::InvalidArgumentError("has no seal of 64 digits, or more than one");
  if (text.substr(begin, kSealBytes) == SealOf(std::string(text), begin)) return absl::OkStatus();
  return absl::InvalidArgumentError("has changed since it was sealed: the seal is not that of the other bytes");
}

// Reads the version before the fields: a newer program's manifest may have some that this one does not know.
absl::Status CheckVersion(std::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json value, ParseJson(text, {.max_values = kValuesMax}));
  if (!value.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("is ", JsonTypeName(value), " where an object is expected"));
  }
  const auto version = value.find("version");
  if (version == value.end()) return absl::InvalidArgumentError("has no version");
  if (version->is_number_unsigned() && version->get<uint64_t>() == kManifestVersion) return absl::OkStatus();
  const std::string text_of_error = absl::StrCat("has the version ", JsonExcerpt(*version), ", this program reads ",
                                                 kManifestVersion, kOtherVersionAdvice);
  // The number says nothing where the manifest is damaged, which the first version could not show.
  const bool is_first =
      version->is_number_unsigned() && version->get<uint64_t>() == kUnsealedVersion && text.find(kSealKey) == text.npos;
  return is_first || CheckSeal(text).ok() ? absl::FailedPreconditionError(text_of_error)
                                          : absl::InvalidArgumentError(text_of_error);
}

// Tells whether fields that this version does not know are all that is wrong with a text whose seal is right: a newer
// one has more keys in run.yaml.
bool HasFieldsOfAnother(std::string_view text) {
  json::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  internal::v1::CheckpointManifest manifest;
  return json::JsonStringToMessage({text.data(), text.size()}, &manifest, options).ok();
}

}  // namespace

absl::StatusOr<std::string> EncodeManifest(const internal::v1::CheckpointManifest& manifest) {
  json::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  internal::v1::CheckpointManifest unsealed = manifest;
  unsealed.set_seal(std::string(kSealBytes, '0'));
  std::string text;
  if (const auto status = json::MessageToJsonString(unsealed, &text, options); !status.ok()) {
    return absl::InternalError(absl::StrCat("a checkpoint's manifest has no JSON: ", status.ToString()));
  }
  text += '\n';
  if (text.size() <= kManifestBytesMax) return Sealed(std::move(text));
  return MakeError(Reason::kLimitExceeded,
                   absl::StrCat("the manifest of the checkpoint takes ", text.size(), " bytes, the limit is ",
                                kManifestBytesMax, "; save with fewer ranks, or with ranges that are longer"));
}

std::string Sealed(std::string text) {
  if (const size_t begin = FindSeal(text); begin != text.npos) text.replace(begin, kSealBytes, SealOf(text, begin));
  return text;
}

absl::StatusOr<internal::v1::CheckpointManifest> DecodeManifest(std::string_view text) {
  if (text.size() > kManifestBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("has ", text.size(), " bytes, the limit is ", kManifestBytesMax));
  }
  // protobuf's own parser takes more than JSON, and the last one of keys that repeat.
  RETURN_IF_ERROR(CheckVersion(text));
  RETURN_IF_ERROR(CheckSeal(text));
  internal::v1::CheckpointManifest manifest;
  const auto status = json::JsonStringToMessage({text.data(), text.size()}, &manifest, json::JsonParseOptions());
  manifest.clear_seal();
  if (status.ok()) return manifest;
  const std::string problem = Shortened(status.message().ToString(), kExcerptBytesMax);
  if (!HasFieldsOfAnother(text)) return absl::InvalidArgumentError(absl::StrCat("is no manifest: ", problem));
  return absl::FailedPreconditionError(
      absl::StrCat("was written by another version of Stemma: ", problem, kOtherVersionAdvice));
}

}  // namespace stemma::server
