// The workers that hold one copy of the training state together: who they are, which rank each has, how far they are
// with loading the model, and whether they are still there. Pure: told the time and what was heard, it decides; its
// owner sends and closes.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) at most one worker of each device, and at most as many workers as the mesh has ranks; all of one version, one
//      build and one kind of device. A session is one worker's, from its Register to its loss.
//  (2) a generation begins when the mesh is full and ends with the first worker that is lost: its ranks are by
//      machine, host, device, then the hardware's id, so workers that come back to the same devices get the same ranks.
//  (3) the generation's number grows with each that begins: what an earlier one's workers say has other keys.
//  (4) the configuration in force is the one divided for the workers' memory, once all of them are ready; the smallest
//      worker decides, for a plan runs the same budget on every rank.
//  (5) a worker that is silent for lost_after, counted while the server was awake, is lost; so is a generation that is
//      too slow to load the model (server/protocol/job_watch.h).
//
// Gathering -> Join of the last one, Begin -> loading -> BecomeReady of the last one -> serving -> Disband ->
// gathering; gathering -> Leave; loading -> Disband.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/device_name.h"
#include "common/model/model_config.h"
#include "server/planner/memory_division.h"
#include "server/protocol/checkpoint_rules.h"
#include "server/protocol/events.h"
#include "server/protocol/host_shares.h"
#include "server/protocol/job_watch.h"
#include "server/protocol/loaded_model.h"

namespace stemma::server {

struct GangOptions {
  uint64_t epoch = 1;
  std::string worker_version;  // that a worker has to have
  std::string data_directory;
  v1::RunConfig config;
  ModelConfig model;
  absl::Duration lost_after;
  absl::Duration stalled_after;
  absl::Duration return_within;
};

class Gang {
 public:
  struct Worker {
    SessionId session = 0;
    std::string incarnation;
    DeviceName device;
    std::string host;
    std::string machine = {};  // under its container; empty: not known
    Pool memory_pool = {};     // of host memory
    Pool core_pool = {};
    uint32_t pid = 0;
    std::string build_id;   // of its program; empty: not known
    std::string device_id;  // of its hardware, unlike any other's; empty: not known
    std::string address;    // at which other ranks reach it; empty: on this machine only
    uint32_t cores = 0;     // as if no other worker were there; 0: not known
    WorkerMemory memory;    // as if no other worker were there
    std::string phase;      // that it said last
    uint64_t progress = 0;
    bool ready = false;
    uint32_t threads = 0;                         // of its compute, once ready
    LoadedModel model = {};                       // once ready
    std::string device_name = {};                 // of the hardware, once ready; empty: a CPU
    std::vector<v1::KernelOff> kernels_off = {};  // that it refused at its start, once ready
    absl::Duration silent_for = {};               // counted
  };
  struct Problem {
    SessionId session = 0;
    std::string reason;
  };

  explicit Gang(GangOptions options);

  uint32_t num_ranks() const;
  const v1::Mesh& mesh() const { return options_.config.mesh(); }
  // Returns them by rank once a generation has begun, else as they came.
  std::span<const Worker> workers() const { return workers_; }
  bool full() const { return workers_.size() == num_ranks(); }
  bool begun() const { return begun_; }
  bool serves() const;
  bool ever_served() const { return ever_served_; }
  bool Has(SessionId session) const { return Find(session) != nullptr; }
  // REQUIRES: begun, and the session's worker is there.
  uint32_t RankOf(SessionId session) const;
  // REQUIRES: begun.
  const Worker& worker(uint32_t rank) const;
  uint64_t generation() const { return generation_; }
  const v1::RunConfig& config() const { return config_; }
  // Returns the links that the ready ranks of this generation measured; all of them once it serves.
  const std::vector<v1::LinkInfo>& links() const { return links_; }
  // Returns how many kernels the worker with the most of them refused at its start; nothing where none of the workers
  // checks its kernels, as on CPUs.
  std::optional<size_t> KernelsOff() const;
  // Notes, in an operator's words, why a worker was refused or lost, or a generation ended.
  void NoteTrouble(std::string what) { trouble_ = std::move(what); }
  const std::string& trouble() const { return trouble_; }
  // A worker in an operator's words: its rank, once it has one, device and host.
  std::string TextOf(SessionId session) const;

  // Takes a worker. Errors: FailedPrecondition - it is of another version, there is no rank for it, its device has a
  // worker, or another is of another build; it may try again; InvalidArgument - its device is of another kind, or it is
  // reachable from its own host only while there are others.
  absl::Status Join(absl::Time now, SessionId session, const internal::v1::Register& message);
  // Begins a generation, which is to load these weights. Returns what rank 0 is sent, the only one that
  // can be sent something yet where there are several. REQUIRES: full, and none has begun. Errors: what DivideMemory
  // refuses, for each rank.
  absl::StatusOr<internal::v1::Configure> Begin(absl::Time now, const WeightsBase& base);
  // Returns what ranks 1, 2, … are sent now that rank 0 has opened its store. Errors: InvalidArgument - another rank
  // opens one, or rank 0 a second one.
  absl::StatusOr<std::vector<internal::v1::Configure>> OpenStore(SessionId session, const std::string& address);
  // Errors: InvalidArgument - it was ready before, was not told yet what to load, or says that it measured links that
  // the mesh does not have; FailedPrecondition - it has loaded other weights than another rank.
  absl::Status BecomeReady(SessionId session, const internal::v1::Ready& message);
  // Forgets a worker that waits for others. REQUIRES: no generation has begun.
  void Leave(absl::Time now, SessionId session);
  // Ends the generation: its workers are forgotten.
  void Disband(absl::Time now);
  // The step key of this rank and generation, without what names the step.
  internal::v1::StepKey KeyOf(uint32_t rank) const;

  // Lets the time since the last event pass; returns how much of it counts (CountedTime), zero without a worker.
  absl::Duration Pass(absl::Time now, absl::Time handled_at = absl::InfinitePast());
  void Heard(SessionId session);
  void Heard(SessionId session, const internal::v1::Heartbeat& heartbeat);
  // The counters of all workers together, which stand still when every one of them does; and what each one does.
  uint64_t progress() const;
  std::string PhasesText() const;
  // Begins the next look at the workers where one was due.
  void Look(absl::Time now);
  // Why a worker is given up, if one is.
  std::optional<Problem> FindProblem() const;
  // Starts the wait for workers, if none are there.
  void Expect(absl::Time now) { MissFrom(now); }
  // Tells whether no worker was there, or none that got ready, for return_within.
  bool MissingTooLong(absl::Time now) const { return now >= ReturnDeadline(); }
  absl::Time ReturnDeadline() const { return missing_since_ + options_.return_within; }
  absl::Time NextLook() const { return next_look_; }

 private:
  const Worker* Find(SessionId session) const;
  Worker* Find(SessionId session);
  absl::Status CheckFits(const Worker& worker) const;
  absl::StatusOr<v1::RunConfig> Divide() const;
  internal::v1::Configure ConfigureOf(uint32_t rank) const;
  void Serve();
  void MissFrom(absl::Time now);

  const GangOptions options_;
  v1::RunConfig config_;
  std::vector<Worker> workers_;
  bool begun_ = false;
  v1::RunConfig divided_;            // for the workers' memory
  WeightsBase base_;                 // that the generation loads
  std::string store_;                // that rank 0 opened
  std::vector<v1::LinkInfo> links_;  // of the generation, each axis's slowest
  std::optional<JobWatch> loading_;  // until all are ready
  bool ever_served_ = false;
  std::string trouble_;  // the newest, for as long as the gang does not serve
  CountedTime counted_;
  absl::Time next_look_ = absl::InfiniteFuture();  // infinite without a worker
  absl::Time missing_since_ = absl::InfiniteFuture();
  uint64_t generation_ = 0;
};

// Names a worker's device as rates are looked up and kept by it: its kind and, where the worker knows it, its hardware.
std::string RatedDevice(const Gang::Worker& worker);

}  // namespace stemma::server
