#include "server/protocol/host_shares.h"

#include <algorithm>

#include "glog/logging.h"

namespace stemma::server {
namespace {

// 0: not known.
int64_t PartOf(int64_t bytes, uint32_t parts) { return bytes == 0 ? 0 : std::max<int64_t>(1, bytes / parts); }
int64_t Smaller(int64_t a, int64_t b) { return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b); }

}  // namespace

bool ShareOne(const Pool& a, const Pool& b) {
  if (a.machine != b.machine) return false;
  if (a.machine.empty()) return a.host == b.host;
  if (a.host != b.host) return a.group.empty() && b.group.empty();
  return a.group == b.group || a.group.empty() || b.group.empty();
}

WorkerMemory ShareOf(const WorkerMemory& reported, uint32_t workers) {
  CHECK_GT(workers, 0u);
  WorkerMemory share = reported;
  share.host_free_bytes = PartOf(share.host_free_bytes, workers);
  if (reported.host_free_bytes > 0) return share;
  share.device_free_bytes = PartOf(share.device_free_bytes, workers);
  share.device_bytes = PartOf(share.device_bytes, workers);
  return share;
}

WorkerMemory SmallestOf(std::span<const WorkerMemory> workers) {
  WorkerMemory smallest = workers.front();
  for (const WorkerMemory& worker : workers) {
    smallest.device_free_bytes = Smaller(smallest.device_free_bytes, worker.device_free_bytes);
    smallest.host_free_bytes = Smaller(smallest.host_free_bytes, worker.host_free_bytes);
    smallest.device_bytes = Smaller(smallest.device_bytes, worker.device_bytes);
  }
  return smallest;
}

uint32_t ThreadsOf(uint32_t cores, uint32_t workers) {
  if (workers == 1 || cores == 0) return 0;
  return std::max(cores / workers, 1u);
}

}  // namespace stemma::server
