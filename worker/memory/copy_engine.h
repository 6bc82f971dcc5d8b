// CopyEngine: moves bytes between device and host memory, apart from the thread that computes. On a CPU: one thread
// with memcpy (thread_copy_engine.h); with CUDA: streams and events (cuda_copy_engine.h).
//
// Called by worker/memory/offload_store.h and worker/optim/state_stream.h on the engine thread. Raw pointers only: an
// engine makes no ATen call. Both ends of a copy stay valid, and the source unchanged, until its ticket is done, waited
// for or cancelled; each of these ends the ticket, an error too.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stemma::worker {

using CopyTicket = int64_t;

struct CopySpan {
  const void* from;
  void* to;
  int64_t bytes;
};

// A copy as it ran, or a wait for one. Seconds of RealClock().
struct CopyTimes {
  enum class Kind { kOut, kIn, kWait } kind;
  CopyTicket ticket;
  int64_t bytes;  // 0 of a wait
  double begun_s, ended_s;
};
using CopyObserver = std::function<void(const CopyTimes&)>;

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;

  // Device to host. Starts after what the calling thread has computed so far.
  virtual CopyTicket StartCopyOut(std::vector<CopySpan> spans) = 0;
  // Host to device. Starts after what the calling thread has computed so far, which may use the memory it fills.
  virtual CopyTicket StartCopyIn(std::vector<CopySpan> spans) = 0;
  // Polls. True: the bytes are there.
  virtual absl::StatusOr<bool> Done(CopyTicket ticket) = 0;
  // Ok: the bytes are there. May overtake copies that have not begun.
  virtual absl::Status Wait(CopyTicket ticket) = 0;
  // Lets what the calling thread computes from now on, and copies that are started from now on, come after this copy.
  // The thread itself goes on where a device has a queue of its own: it must not look at the bytes. Either end may be
  // given away, if what takes it is queued in the same way. An error of the copy itself may show later, as the
  // device's.
  virtual absl::Status ComputeWaits(CopyTicket ticket) { return Wait(ticket); }
  // Afterwards neither end is touched any more; how much was copied is not known. May block.
  virtual void Cancel(CopyTicket ticket) = 0;

  // Tells `observer` of the copies that end and of the waits from now on, on any thread and for a moment after it was
  // replaced; empty: tells nobody. An engine that does not know when its copies ran tells nothing.
  virtual void Observe(const CopyObserver& /*observer*/) {}
};

}  // namespace stemma::worker
