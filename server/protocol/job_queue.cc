#include "server/protocol/job_queue.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admission/log_prob_sources.h"
#include "glog/logging.h"

namespace stemma::server {
namespace {

uint64_t BytesOf(const CallJob& job) { return job.request() == nullptr ? 0 : job.request()->bytes; }

}  // namespace

const TrainingRequest* CallJob::request() const {
  if (const auto* pass = std::get_if<LogProbJob>(&work)) return pass->request.get();
  if (const auto* verification = std::get_if<VerifyJob>(&work)) return verification->request.get();
  return nullptr;
}

std::string JobQueue::AddCallJob(CallJob job) {
  // In the order of the variant.
  static constexpr std::array kKinds = {"~log-prob/", "~verify/", "~export/", "~save/", "~load/"};
  std::string id = absl::StrCat(kKinds.at(job.work.index()), next_call_job_++);
  call_job_bytes_ += BytesOf(job);
  call_jobs_.emplace(id, std::move(job));
  order_.push_back(id);
  return id;
}

std::string JobQueue::AddFirst(CallJob job) {
  std::string id = AddCallJob(std::move(job));
  order_.pop_back();
  order_.push_front(id);
  return id;
}

std::optional<std::string> JobQueue::TakeNext() {
  if (order_.empty()) return std::nullopt;
  std::string id = std::move(order_.front());
  order_.pop_front();
  return id;
}

std::optional<uint32_t> JobQueue::PlaceOf(const std::string& id) const {
  const auto place = std::find(order_.begin(), order_.end(), id);
  if (place == order_.end()) return std::nullopt;
  return static_cast<uint32_t>(place - order_.begin()) + 1;
}

absl::flat_hash_map<std::string_view, uint32_t> JobQueue::Places() const {
  absl::flat_hash_map<std::string_view, uint32_t> places;
  places.reserve(order_.size());
  for (const std::string& id : order_) places.emplace(id, static_cast<uint32_t>(places.size()) + 1);
  return places;
}

CallJob* JobQueue::FindCallJob(const std::string& id) {
  const auto job = call_jobs_.find(id);
  return job == call_jobs_.end() ? nullptr : &job->second;
}

std::string JobQueue::CallJobOf(CallId call) const {
  const auto job =
      std::find_if(call_jobs_.begin(), call_jobs_.end(), [&](const auto& j) { return j.second.call == call; });
  return job == call_jobs_.end() ? "" : job->first;
}

std::vector<std::string> JobQueue::CallJobIds() const {
  std::vector<std::string> ids;
  for (const auto& [id, job] : call_jobs_) ids.push_back(id);
  return ids;
}

bool JobQueue::HasExport(const std::string& name) const {
  return std::any_of(call_jobs_.begin(), call_jobs_.end(),
                     [&](const auto& job) { return Writes<ExportJob>(job.second.work, name); });
}

bool JobQueue::HasSave(const std::string& name) const {
  return std::any_of(call_jobs_.begin(), call_jobs_.end(),
                     [&](const auto& job) { return Writes<SaveJob>(job.second.work, name); });
}

bool JobQueue::ReadsCheckpoint(const std::string& name) const {
  return std::any_of(call_jobs_.begin(), call_jobs_.end(), [&](const auto& job) {
    // A load that waits has read its checkpoint, and workers will again.
    if (const auto* load = std::get_if<LoadJob>(&job.second.work)) return load->name == name;
    const TrainingRequest* request = job.second.request();
    if (request == nullptr) return false;
    const std::vector<std::string> read = CheckpointsReadBy(*request);
    return std::find(read.begin(), read.end(), name) != read.end();
  });
}

CallJob JobQueue::RemoveCallJob(const std::string& id) {
  const auto job = call_jobs_.find(id);
  CHECK(job != call_jobs_.end()) << id;
  CallJob removed = std::move(job->second);
  call_jobs_.erase(job);
  std::erase(order_, id);
  call_job_bytes_ -= BytesOf(removed);
  return removed;
}

}  // namespace stemma::server
