// Fields that a client sends, or a file of the server holds, and this server does not know. They would be dropped in
// silence, and the message would mean something else than its sender, or the version that wrote it, thought. Pure.
#pragma once

#include <string>

#include "common/admission/violations.h"
#include "google/protobuf/message.h"

namespace stemma {

// Returns where a message that a version of the server wrote first has a field, or a value of an enum, that this one
// does not know: "field 17 of header.loss". Empty: nowhere.
std::string FirstUnknown(const google::protobuf::Message& message);

// Reports each message in it that has such a field, by its path and the field's number. `path`: of the message, empty
// at the top.
void CheckKnownFields(const google::protobuf::Message& message, const std::string& path, Violations& violations);

}  // namespace stemma
