// The gRPC server: both services, health, reflection, limits, keepalive. Plaintext.
//
// Health: `liveness` from the start; "", `readiness` and each service's name while a worker has the weights.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/model_config.h"
#include "server/coordinator/coordinator.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma {

struct ServerOptions {
  std::string listen;  // host:port; port 0: any
  v1::Limits limits;
  ModelConfig model;
  CoordinatorOptions coordinator;
};

class Server {
 public:
  // Errors: Unavailable - the port cannot be opened.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options, const Clock& clock);
  ~Server();

  const std::string& address() const { return address_; }  // with the port in use
  // Refuses new work, lets what runs end its step, pass or export for at most `within`, answers the rest, closes all
  // streams. Waits for all that: at most `within`, and twice kCloseWithin (common/stop_times.h).
  void Drain(absl::Duration within);

 private:
  explicit Server(const Clock& clock);
  void SetReady(bool ready);

  struct Rpc;  // gRPC objects stay out of this header
  const Clock& clock_;
  std::string address_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Rpc> rpc_;
};

}  // namespace stemma
