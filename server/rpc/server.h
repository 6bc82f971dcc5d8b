// The listeners of the server, each with its own limits and its own trust. Clients and workers speak TLS where its
// files are given, all others plaintext.
//
//   clients   TrainingService and reflection; messages up to limits.message_bytes
//   workers   WorkerService alone, for those who send the secret; messages up to kReceivedBytesMax, whatever
//             the clients' limit is (common/base/message_sizes.h)
//   ops       health: `liveness` while the coordinator decides; "", `readiness` and the public service's name while a
//             worker has the weights, too
//   metrics   GET /metrics over HTTP, for Prometheus; where it is asked for
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/address.h"
#include "common/base/tls_files.h"
#include "common/model/model_config.h"
#include "server/coordinator/answer_watch_thread.h"
#include "server/coordinator/coordinator.h"
#include "stemma/v1/run_config.pb.h"

namespace stemma::server {

struct ServerOptions {
  HostPort listen, worker_listen, ops_listen;  // port 0: any
  std::optional<HostPort> metrics_listen;      // none: nobody reads metrics
  std::string worker_secret;
  TlsFiles tls;             // of clients and workers; none: plaintext
  bool reflection = false;  // for clients
  v1::Limits limits;
  ModelConfig model;
  CoordinatorOptions coordinator;
  std::unique_ptr<Storage> storage = nullptr;  // null: nothing outlives the process
};

class Server {
 public:
  // Errors: Unavailable - the port cannot be opened.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options, const Clock& clock);
  ~Server();

  // Addresses with the ports in use.
  const std::string& address() const { return address_; }
  const std::string& worker_address() const { return worker_address_; }
  const std::string& ops_address() const { return ops_address_; }
  const std::string& metrics_address() const { return metrics_address_; }  // empty: there is none
  // Refuses new work, lets what runs end its step, pass or export for at most `within`, answers the rest, closes all
  // streams; health answers until the end. Waits for all that: at most `within` and kCloseWithin
  // (common/base/stop_times.h). False: something runs on, as where the disk hangs.
  bool Drain(absl::Duration within);
  // Ends all but health, after Drain, and waits at most `within` for what the disk has not ended. Returns "", or what
  // it is: then the destructor would wait for it.
  std::string Stop(absl::Duration within);

 private:
  explicit Server(const Clock& clock);
  absl::Status OpenListeners(const ServerOptions& options, uint32_t ranks);
  absl::Status OpenMetrics(const ServerOptions& options);
  void SetReady(bool ready);
  void SetAnswering(Answering answering);

  struct Rpc;  // gRPC objects stay out of this header
  const Clock& clock_;
  std::string address_, worker_address_, ops_address_, metrics_address_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Rpc> rpc_;
  std::unique_ptr<AnswerWatchThread> watch_;  // of the coordinator
};

}  // namespace stemma::server
