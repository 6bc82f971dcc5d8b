// The jobs that were accepted and not begun, in their order: updates, by the id of their record, and the jobs that end
// with their call (log-prob passes, verifications, exports, and what saves or loads a checkpoint), which are held here
// until they have ended.
//
// Thread safety: none; owned by CoordinatorState.
// Invariants:
//  (1) an id stands in the queue once; the running job does not.
//  (2) ids of call jobs are made here and begin with '~', which no request id does: on the wire both name payloads.
//  (3) call_job_bytes is what the requests of call jobs take, those of the running one too.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/protocol/events.h"
#include "server/protocol/request_plan.h"
#include "server/protocol/verification.h"

namespace stemma::server {

struct LogProbJob {
  std::shared_ptr<const TrainingRequest> request;
  RequestPlan plan;
};
struct VerifyJob {
  std::shared_ptr<const TrainingRequest> request;
  std::shared_ptr<const RequestPlan> plan;  // with that of its dense run
  std::shared_ptr<Verification> answers;    // of the ranks; null: it has not begun
};
struct ExportJob {
  v1::ExportWeightsRequest request;
  bool name_is_free = false;  // when it was asked for
};
struct SaveJob {
  v1::SaveCheckpointRequest request;  // with its name
};
// The checkpoint was read back.
struct LoadJob {
  std::string name;
  std::string client_state;
  std::optional<std::string> expected_lineage = {};  // looked at when it is carried out, too
};
// What needs no groups, and no plan.
using PlainWork = std::variant<ExportJob, SaveJob, LoadJob>;
// Whether the work is of this kind, which writes under a name, and that name is `name`.
template <typename Job, typename Work>
bool Writes(const Work& work, const std::string& name) {
  const auto* job = std::get_if<Job>(&work);
  return job != nullptr && job->request.name() == name;
}
// A job that ends with its call.
struct CallJob {
  CallId call = 0;  // 0: it left
  std::variant<LogProbJob, VerifyJob, ExportJob, SaveJob, LoadJob> work;

  // The request whose groups the ranks are sent; null: it has none.
  const TrainingRequest* request() const;
};

class JobQueue {
 public:
  void AddUpdate(const std::string& request_id) { order_.push_back(request_id); }
  // Puts a job back to the front: it is the next one to run.
  void PutBack(const std::string& id) { order_.push_front(id); }
  // Return the id that was made for it. AddFirst: it is the next one to run.
  std::string AddCallJob(CallJob job);
  std::string AddFirst(CallJob job);
  // Returns the id of the next job to run, which leaves the queue.
  std::optional<std::string> TakeNext();
  // The place in the queue, from 1. Costs a walk through the queue: who asks for many takes Places.
  std::optional<uint32_t> PlaceOf(const std::string& id) const;
  // Returns every id's place, by ids that live until the queue changes.
  absl::flat_hash_map<std::string_view, uint32_t> Places() const;
  bool empty() const { return order_.empty(); }

  // Null: no call job has this id.
  CallJob* FindCallJob(const std::string& id);
  // The id of the call's job; "": it has none.
  std::string CallJobOf(CallId call) const;
  std::vector<std::string> CallJobIds() const;
  bool HasExport(const std::string& name) const;
  bool HasSave(const std::string& name) const;
  bool ReadsCheckpoint(const std::string& name) const;  // a job does
  size_t num_call_jobs() const { return call_jobs_.size(); }
  uint64_t call_job_bytes() const { return call_job_bytes_; }

  // Takes an update out of the queue, if it waits there.
  void RemoveUpdate(const std::string& request_id) { std::erase(order_, request_id); }
  // Takes a call job away, waiting or running. REQUIRES: there is one of this id.
  CallJob RemoveCallJob(const std::string& id);

 private:
  std::deque<std::string> order_;
  std::map<std::string, CallJob> call_jobs_;
  uint64_t next_call_job_ = 1;
  uint64_t call_job_bytes_ = 0;
};

}  // namespace stemma::server
