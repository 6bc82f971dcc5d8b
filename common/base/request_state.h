// What the states of a request mean, for the server's tables and for commands that wait.
#pragma once

#include "stemma/v1/training.pb.h"

namespace stemma {

// Tells whether the request has ended, by its state.
bool IsFinal(v1::RequestState state);

}  // namespace stemma
