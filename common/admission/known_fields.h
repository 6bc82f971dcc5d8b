// Fields that a client sends and this server does not know. They would be dropped in silence, and the request would
// mean something else than its sender thought, so each is a problem, by its path and number. Pure.
#pragma once

#include <string>

#include "common/admission/violations.h"
#include "google/protobuf/message.h"

namespace stemma {

// Returns the first place of what this program's own files hold and a newer version alone understands: a field, or a
// value of an enum. Empty: there is none.
std::string FirstUnknown(const google::protobuf::Message& message);

// Walks the message and every message in it. `path`: of the message, empty at the top.
void CheckKnownFields(const google::protobuf::Message& message, const std::string& path, Violations& violations);

}  // namespace stemma
