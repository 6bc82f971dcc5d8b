// Residency: where each entry of a dormant set is, and what is to be moved next. Pure: sizes and events in, actions
// out; no LibTorch, threads or clocks. worker/memory/offload_store.h executes the actions.
//
//   kDevice -> kLeaving -> kHost -> kArriving -> kDevice -> kConsumed
//   kLeaving -> kDevice where the entry is needed, or room for it is left, before its copy has ended, or where the host
//   has no room for the copy;
//   kDevice -> kConsumed for what never left
//
// Thread safety: none; owned by the engine thread.
// Policy: copies out start in the order of production, kCopiesOutMax at a time. From ConsumeSoon on, entries are
// prefetched in the reverse order, as many as fit `headroom_bytes`, and remaining entries are copied out only until the
// rest fits in `headroom_bytes`. An entry that is needed while it is in host memory is loaded on demand, whatever the
// headroom.
// Invariants, CHECKed (a breach is a bug of the executor):
//  (1) device memory is freed only after the entry's copy out, host memory only after its copy in, each once.
//  (2) an entry is read only on the device, only after Need, and once.
//  (3) device_bytes and host_bytes are the sums over the entries that are there; both end at 0.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stemma::worker {

inline constexpr int64_t kCopiesOutMax = 2;  // the second waits at the link while the first is copied

struct ResidencyOptions {
  int64_t host_bytes = 0;      // of the arena
  int64_t headroom_bytes = 0;  // 0: no prefetch, every load is on demand
};

enum class Place { kDevice, kLeaving, kHost, kArriving, kConsumed };
std::string_view PlaceName(Place place);

enum class ActionKind {
  kStartCopyOut,   // take host memory, start the copy; CopyOutDone or CopyOutRefused follows
  kCancelCopyOut,  // afterwards the copy touches neither end; no CopyOutDone follows
  kFreeDevice,     // at once, then DeviceFreed
  kStartCopyIn,    // take device memory, start the copy; CopyInDone follows
  kFreeHost,       // at once, then HostFreed
  kWaitFor,        // block until the copy in has ended, then CopyInDone
};

struct Action {
  ActionKind kind;
  int64_t entry;
  bool operator==(const Action&) const = default;
};
using Actions = std::vector<Action>;  // to be executed in order

struct ResidencyStats {
  int64_t bytes_out = 0, bytes_in = 0;  // of copies that ended
  int64_t demand_loads = 0;             // needed while in host memory
  int64_t waits = 0;                    // needed while arriving: the prefetch came too late
  int64_t kept = 0, kept_bytes = 0;     // stayed for want of host memory
  int64_t device_bytes = 0, peak_device_bytes = 0;
  int64_t host_bytes = 0, peak_host_bytes = 0;
};

class Residency {
 public:
  explicit Residency(const ResidencyOptions& options);

  // A new entry, on the device; entries are consumed in about the reverse order.
  Actions Produced(int64_t entry, int64_t bytes);
  Actions CopyOutDone(int64_t entry);
  // The host arena has no block for it (free bytes in pieces): the entry is kept on the device.
  Actions CopyOutRefused(int64_t entry);
  Actions CopyInDone(int64_t entry);
  // Phase A is over; what has not left yet goes on leaving.
  void ProducingEnded();
  // The last wave begins.
  Actions ConsumeSoon();
  // The consuming layer waits for it. After the actions it is on the device.
  Actions Need(int64_t entry);
  // The consumer has taken it over: its device bytes are no longer ours.
  Actions Consumed(int64_t entry);

  void DeviceFreed(int64_t entry);
  void HostFreed(int64_t entry);

  Place place(int64_t entry) const;
  const ResidencyStats& stats() const { return stats_; }

 private:
  struct Entry {
    int64_t index = 0, bytes = 0;
    Place place = Place::kDevice;
    bool kept = false, needed = false;
    bool owes_device_free = false, owes_host_free = false;
  };

  Entry& At(int64_t entry);
  void CheckNothingOwed() const;
  void AddDeviceBytes(int64_t bytes);
  void AddHostBytes(int64_t bytes);
  void EndCopyOut(const Entry& e);
  void Keep(Entry& e);
  void Stay(Entry& e, Actions& actions);
  void FreeDevice(Entry& e, Actions& actions);
  void FreeHost(Entry& e, Actions& actions);
  bool MayLeave(const Entry& e) const;
  void StartCopyIn(Entry& e, Actions& actions);
  void StartCopiesOut(Actions& actions);
  void Prefetch(Actions& actions);
  void Continue(Actions& actions);

  const ResidencyOptions options_;
  std::vector<Entry> entries_;  // in order of production
  std::unordered_map<int64_t, size_t> position_;
  size_t next_out_ = 0;        // all before it left, were kept or were needed
  size_t end_ = 0;             // all from here on are consumed
  int64_t in_flight_out_ = 0;  // kLeaving
  int64_t frees_owed_ = 0;     // ordered, not confirmed yet
  // On the device and not consumed, without those kept; what leaves counts until it is freed.
  int64_t staged_bytes_ = 0;
  int64_t leaving_bytes_ = 0;
  bool producing_ = true, consuming_ = false;
  ResidencyStats stats_;
};

}  // namespace stemma::worker
