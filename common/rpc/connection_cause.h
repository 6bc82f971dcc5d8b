// Why a connection could not be made, from gRPC's text of it in our words.
#pragma once

#include <string>
#include <string_view>

#include "common/base/tls_files.h"

namespace stemma {

// `grpc_text`: of the status of a call that found no connection. `tls`: what the connection was to be made with.
// Returns what is known of the cause, and which option to look at; "": nothing is.
std::string ConnectionCause(std::string_view grpc_text, const TlsFiles& tls);

}  // namespace stemma
