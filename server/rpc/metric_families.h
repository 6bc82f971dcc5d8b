// A server's numbers as metrics of Prometheus; docs/operate.md lists them. Pure.
#pragma once

#include <prometheus/metric_family.h>

#include <optional>
#include <string>
#include <vector>

#include "server/protocol/server_numbers.h"
#include "server/rpc/certificate_state.h"

namespace stemma::server {

// What never changes of a server.
struct ServerFacts {
  std::string version;
  double started_at_s = 0;  // since 1970
};

// Returns the metrics of a server that answered; nullopt: it did not, and that is all that is said, but for
// its files of TLS, where it has some.
std::vector<prometheus::MetricFamily> MetricFamiliesOf(const ServerFacts& facts,
                                                       const std::optional<ServerNumbers>& numbers,
                                                       const std::optional<CertificateState>& certificates);

}  // namespace stemma::server
