// By what a server and its workers know that they are made for each other. Pure; both programs use it.
#pragma once

#include <string>

#include "google/protobuf/descriptor.h"

namespace stemma {

// Returns 12 hexadecimal digits: the same for two files whose messages, and those that they import, have the same
// fields. Comments do not count.
std::string MessagesDigest(const google::protobuf::FileDescriptor& file);

// Returns "0.1.0, messages 3f2a90b1c4d5": Stemma's version, and a digest of every field that the two can send each
// other. The number alone is not enough: two builds between releases have the same one, and protobuf drops in silence
// what a program does not know, so that a plan's new field would not be computed with.
std::string WorkerVersion();

}  // namespace stemma
