#include "server/protocol/incident.h"

#include "nlohmann/json.hpp"
#include "server/protocol/coordinator_parts.h"

namespace stemma::server {
namespace {

constexpr size_t kPlanBytesMax = 1 << 20;

// Without what it says of each cluster where that is much: a plan of a million rollouts.
v1::PlanReport ShortenedPlan(v1::PlanReport plan) {
  if (plan.ByteSizeLong() <= kPlanBytesMax) return plan;
  for (v1::StepReport& step : *plan.mutable_steps()) step.clear_clusters();
  return plan;
}

std::optional<Incident::Job> JobOf(Jobs& jobs) {
  const RunningJob& running = jobs.running();
  if (!running.exists()) return std::nullopt;
  Incident::Job job = {.id = running.id(), .what = running.what(), .decided = running.committed()};
  if (running.is_update()) job.plan = ShortenedPlan(jobs.RunningUpdate().plan.report);
  return job;
}

nlohmann::ordered_json JsonOf(size_t number, const Incident::Rank& rank) {
  return {{"rank", number},
          {"incarnation", rank.incarnation},
          {"host", rank.host},
          {"pid", rank.pid},
          {"device", rank.device},
          {"ready", rank.ready},
          {"phase", rank.phase},
          {"progress", rank.progress},
          {"silent_s", absl::ToDoubleSeconds(rank.silent_for)},
          {"answered", rank.answered}};
}

}  // namespace

Incident MakeIncident(const CoordinatorParts& parts, const std::string& reason) {
  const RunningJob& running = parts.jobs.running();
  Incident incident = {.at = parts.out.time_of_day(),
                       .epoch = parts.options.epoch,
                       .generation = parts.gang.generation(),
                       .reason = reason,
                       .served = parts.gang.serves(),
                       .lineage = parts.lineage.name(),
                       .step = parts.lineage.step(),
                       .weights_step = parts.lineage.weights_step(),
                       .open_requests = parts.jobs.num_open(),
                       .job = JobOf(parts.jobs),
                       .ranks = {}};
  for (const Gang::Worker& worker : parts.gang.workers()) {
    const auto rank = static_cast<uint32_t>(incident.ranks.size());
    incident.ranks.push_back({.incarnation = worker.incarnation,
                              .host = worker.host,
                              .pid = worker.pid,
                              .device = worker.device.Text(),
                              .ready = worker.ready,
                              .phase = worker.phase,
                              .progress = worker.progress,
                              .silent_for = worker.silent_for,
                              .answered = running.exists() && running.HasAnswered(rank)});
  }
  return incident;
}

std::string IncidentText(const Incident& incident) {
  nlohmann::ordered_json json = {{"time", absl::FormatTime(absl::RFC3339_sec, incident.at, absl::UTCTimeZone())},
                                 {"epoch", incident.epoch},
                                 {"generation", incident.generation},
                                 {"reason", incident.reason},
                                 {"served", incident.served},
                                 {"lineage", incident.lineage},
                                 {"step", incident.step},
                                 {"weights_step", incident.weights_step},
                                 {"open_requests", incident.open_requests}};
  if (incident.job) {
    json["job"] = {{"id", incident.job->id}, {"what", incident.job->what}, {"decided", incident.job->decided}};
  }
  for (size_t rank = 0; rank < incident.ranks.size(); ++rank) {
    json["ranks"].push_back(JsonOf(rank, incident.ranks[rank]));
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace stemma::server
