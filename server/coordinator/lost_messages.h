// Places at which a test lets a message between the server and a worker be lost: common/base/failpoint.h. Each kind of
// message has a place of its own, "send.apply" or "receive.vote".
#pragma once

#include "stemma/internal/v1/worker.pb.h"

namespace stemma::server {

// Passes the message's place; true: it is lost.
bool IsLost(const internal::v1::ServerMessage& message);
bool IsLost(const internal::v1::WorkerMessage& message);

}  // namespace stemma::server
