#include "worker/rpc/evidence.h"

#include "absl/strings/str_cat.h"
#include "common/base/incidents.h"
#include "common/base/logging.h"
#include "glog/logging.h"

namespace stemma::worker {

void LeaveEvidence(const internal::v1::Configure& generation, const Evidence& evidence) {
  const std::string why =
      evidence.engine.ok() ? "the server ended the session, as where a checkpoint is loaded, or was lost; server.json "
                             "may know why"
                           : std::string(evidence.engine.message());
  const std::string stack = evidence.stack.empty() ? "(it has ended, or does not answer)\n" : evidence.stack;
  const std::string text =
      absl::StrCat("ended: ", why, "\nphase: ", evidence.last.phase(), ", progress ", evidence.last.progress(),
                   "\n\nstack of the engine's thread:\n", stack, "\nlast lines of the log:\n", LastLogLines());
  const absl::Status status =
      WriteIncidentFile(generation.data_directory(), IncidentName(generation.epoch(), generation.generation()),
                        absl::StrCat("rank-", generation.rank(), ".txt"), text);
  if (generation.rank() == 0) RemoveOldIncidents(generation.data_directory());  // no server may have seen this end
  LOG_IF(WARNING, !status.ok()) << "nothing is left of this generation: " << status.message();
}

}  // namespace stemma::worker
