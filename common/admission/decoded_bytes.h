// How much memory a message will take, told from its bytes before they are decoded: empty rollouts take 2 bytes each in
// a message and some 130 in memory, and whoever sends them chooses how many. Pure.
#pragma once

#include <cstdint>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/zero_copy_stream.h"

namespace stemma {

// Walks the tags of a message of this type, and skips what its strings hold. Returns no less than the decoded message
// takes, strings and fields that nobody knows included; of bytes that are no message, what those before the fault
// take at least. REQUIRES: `type` holds no message of its own type, at any depth.
uint64_t DecodedBytes(const google::protobuf::Descriptor& type, google::protobuf::io::ZeroCopyInputStream& bytes);

}  // namespace stemma
