// The metrics of a server for Prometheus: GET /metrics over HTTP, on a port of its own, in plain text. Nothing else is
// answered there, and nothing can be changed.
//
// Each read asks the coordinator, in its turn among the events; one that does not answer within kAnswerWithin is said
// not to, and is asked no second question until it has answered the first: reads that come meanwhile, one after the
// other, wait no longer than the first.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "server/protocol/server_numbers.h"
#include "server/rpc/metric_families.h"

namespace prometheus {
class Exposer;
class Collectable;
}  // namespace prometheus

namespace stemma::server {

// Puts a question: what it is given is called once, from any thread, when it is answered; never once that is stopped.
using AskNumbersFunction = std::function<void(std::function<void(ServerNumbers)>)>;

// Returns what is known of the files of TLS; nullopt: there are none. Called from any thread.
using CertificatesFunction = std::function<std::optional<CertificateState>()>;

class MetricsListener {
 public:
  static constexpr absl::Duration kAnswerWithin = absl::Seconds(2);

  // Errors: Unavailable - the address cannot be opened.
  static absl::StatusOr<std::unique_ptr<MetricsListener>> Open(HostPort address, ServerFacts facts,
                                                               AskNumbersFunction ask,
                                                               CertificatesFunction certificates);
  ~MetricsListener();  // waits for reads under way

  const std::string& address() const { return address_; }  // with the port in use

 private:
  MetricsListener() = default;

  std::shared_ptr<prometheus::Collectable> numbers_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string address_;
};

}  // namespace stemma::server
