// Gangs of the tests, and what workers say when they come.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "server/protocol/gang.h"
#include "tests/server/planner/cluster_shapes.h"

namespace stemma::server {

inline constexpr absl::Time kStart = absl::UnixEpoch();

inline GangOptions Options() {
  GangOptions options;
  options.epoch = 4;
  options.config.set_dtype("fp32");
  options.config.set_threads(8);
  options.model = testing::BenchModel();
  options.lost_after = absl::Seconds(15);
  options.stalled_after = absl::Minutes(5);
  options.return_within = absl::Minutes(2);
  return options;
}

inline internal::v1::Register Worker(const std::string& incarnation) {
  internal::v1::Register message;
  message.set_incarnation(incarnation);
  message.set_memory_free_bytes(uint64_t{8} << 30);
  return message;
}

inline internal::v1::Ready Loaded() {
  internal::v1::Ready ready;
  ready.mutable_config()->set_threads(2);
  return ready;
}

inline GangOptions MeshOf(uint32_t ranks) {
  GangOptions options = Options();
  options.config.mutable_mesh()->set_dp(ranks);
  return options;
}

inline internal::v1::Register WorkerAt(const std::string& host, const std::string& device,
                                       const std::string& address = "") {
  internal::v1::Register message = Worker(host + "-" + device.substr(device.find(':') + 1));
  message.set_host(host);
  message.set_device(device);
  message.set_address(address);
  return message;
}

// Takes a worker that fills the mesh, and begins the generation.
inline absl::StatusOr<internal::v1::Configure> JoinAndBegin(Gang& gang, absl::Time now, SessionId session,
                                                            const internal::v1::Register& message, uint64_t step = 0) {
  if (const absl::Status joined = gang.Join(now, session, message); !joined.ok()) return joined;
  return gang.Begin(now, {.step = step});
}

}  // namespace stemma::server
