// Waiting for a channel's connection.
#pragma once

#include "grpcpp/channel.h"

namespace stemma {

// Connects, and returns whether there is a connection within so long. A channel's own WaitForConnected would begin its
// span anew at each try to connect, and at each failure.
bool ConnectedWithin(grpc::Channel& channel, double seconds);

}  // namespace stemma
