// Writes the file of a spooled request, front to back.
//
// The file: 16 bytes of magic, whose last number is the version's; messages, each after its length (8 bytes,
// little-endian): a SpooledHead, then the PayloadChunks of all groups; the end mark (8 bytes of 255); SHA-256 of
// everything before it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/admission/training_request.h"
#include "server/protocol/request_plan.h"
#include "stemma/internal/v1/journal.pb.h"

namespace stemma::server {

// Version 2 holds what each step is normalized with, which a server of version 1 counted by rules of its own.
inline constexpr std::string_view kSpoolMagic("STEMMA SPOOL 2\r\n", 16);
inline constexpr std::string_view kSpoolMagicOfAnyVersion = kSpoolMagic.substr(0, 13);
inline constexpr uint64_t kSpoolEnd = std::numeric_limits<uint64_t>::max();
inline constexpr uint64_t kSpoolDigestBytes = 32;
// A message that is longer is neither written nor read: protobuf's own limit.
inline constexpr uint64_t kSpoolMessageBytesMax = std::numeric_limits<int32_t>::max();

// Returns bytes and digest of what it wrote; its name is the caller's. The payload is not copied but for one chunk.
// Errors: LIMIT_EXCEEDED - a message is longer than `message_bytes_max`; those of the disk (common/base/file.h).
absl::StatusOr<internal::v1::SpoolFile> WriteSpooled(int fd, const std::string& path, const TrainingRequest& request,
                                                     const RequestPlan& plan, const v1::Mesh& mesh,
                                                     uint64_t message_bytes_max);

}  // namespace stemma::server
