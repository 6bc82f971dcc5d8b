// Each program is a namespace of its own; tests stand outside of all and name what they test without its program.
#pragma once

namespace stemma::server {}
namespace stemma::worker {}

namespace stemma::testing {
using namespace server;  // NOLINT(google-build-using-namespace)
using namespace worker;  // NOLINT(google-build-using-namespace)
}  // namespace stemma::testing
