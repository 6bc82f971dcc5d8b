// PlannerThreads: makes plans beside the coordinator, one at a time in each of two lanes: validate_only never holds up
// work. A plan that is stopped ends within one way of a cluster of the planner's search. Keeps requests with their
// plans, and reads them back, where there is a storage: gigabytes never stop the coordinator.
//
// Thread safety: safe. Nothing blocks but StopBy and Stop.
// Invariants:
//  (1) every added plan is answered once by `done`, from a planner's thread, unless it was stopped before it began
//      or the threads were.
//  (2) a plan that runs out of memory is an error of its request (SERVER_MEMORY), the only place where bad_alloc
//      is caught: limits bound what everything else allocates.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "server/coordinator/storage.h"
#include "server/coordinator/watched_thread.h"
#include "server/protocol/events.h"

namespace stemma::server {

inline constexpr char kPlanningRequest[] = "planning a request";  // the only thing that waits for no disk

class PlannerThreads {
 public:
  using Done = std::function<void(Event)>;

  // `storage` may be null, and outlives it: then nothing is kept, and nothing may be loaded.
  PlannerThreads(PlanFunction plan, Storage* storage, Done done);
  ~PlannerThreads() { Stop(); }

  void Add(PlanAction plan);
  void Add(LoadAction load);
  void Cancel(PlanId id);
  // Tells the threads to end, and to stop what they plan.
  void Quit();
  // Quits, and waits for the threads until the deadline. Returns "", or what has not ended: then its thread goes on.
  // Idempotent.
  std::string StopBy(StopDeadline deadline);
  void Stop() { StopBy(absl::InfiniteFuture()); }

 private:
  struct Job {
    std::variant<PlanAction, LoadAction> work;
    std::shared_ptr<std::atomic<bool>> stopped = std::make_shared<std::atomic<bool>>(false);
  };
  struct Lane {
    std::deque<Job> jobs;  // under mutex_
    bool busy = false;     // under mutex_: the front one is being planned
    std::optional<WatchedThread> thread = {};
  };

  void Run(Lane& lane);
  bool Next(Lane& lane, Job& job);  // false: stopped
  // They tell the thread what it does.
  Event Do(const PlanAction& action, const std::atomic<bool>& stopped, WatchedThread& thread) const;
  Event Do(const LoadAction& action, const std::atomic<bool>& stopped, WatchedThread& thread) const;
  absl::Status Keep(const PlanAction& action, PlannedEvent& event) const;
  absl::StatusOr<RequestPlan> Plan(const PlanAction& action, const std::atomic<bool>& stopped) const;

  const PlanFunction plan_;
  Storage* const storage_;
  const Done done_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::array<Lane, 2> lanes_;  // of work, of validate_only
};

}  // namespace stemma::server
