#include "server/protocol/loaded_model.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config_difference.h"

namespace stemma::server {

absl::Status CheckConfigOfWorker(const std::string& worker, const ModelConfig& planned,
                                 const internal::v1::Ready& ready) {
  if (ready.model_config().empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const ModelConfig loaded, ParseModelConfig(ready.model_config()));
  const std::string field = FirstDifference(planned, loaded);
  if (field.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(worker, " has loaded a model whose ", field,
                   " is not that of the server's: the model directories of their hosts differ"));
}

absl::Status CheckSameModel(const std::string& worker, const LoadedModel& model, const std::string& other_worker,
                            const LoadedModel& other) {
  if (model.digest == other.digest && model.files == other.files) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(worker, " has loaded other weights than ", other_worker,
                                         ": the model directories of their hosts differ"));
}

}  // namespace stemma::server
