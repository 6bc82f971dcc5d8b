#include "server/coordinator/incident_files.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/incidents.h"
#include "common/base/logging.h"
#include "glog/logging.h"
#include "google/protobuf/util/json_util.h"

namespace stemma::server {
namespace {

absl::StatusOr<std::string> PlanText(const v1::PlanReport& plan) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(plan, &text, options);
  if (!status.ok()) return absl::InternalError(absl::StrCat("the plan has no JSON: ", std::string(status.message())));
  return text;
}

}  // namespace

void WriteIncident(const std::string& data_directory, const Incident& incident) {
  const std::string name = IncidentName(incident.epoch, incident.generation);
  absl::Status status = WriteIncidentFile(data_directory, name, "server.json", IncidentText(incident));
  status.Update(WriteIncidentFile(data_directory, name, "server.log", LastLogLines()));
  if (incident.job && incident.job->plan) {
    const absl::StatusOr<std::string> plan = PlanText(*incident.job->plan);
    status.Update(plan.ok() ? WriteIncidentFile(data_directory, name, "plan.json", *plan) : plan.status());
  }
  if (status.ok()) {
    LOG(INFO) << "what is known of it: " << data_directory << "/incidents/" << name;
  } else {
    LOG(WARNING) << "incident " << name << " is not kept whole: " << status.message();
  }
  RemoveOldIncidents(data_directory);
}

}  // namespace stemma::server
