#include "common/admission/traced_request.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/admission/request_builder.h"
#include "common/base/status_macros.h"

namespace stemma {

absl::StatusOr<std::shared_ptr<const TrainingRequest>> BuildTraced(TraceRequest request, const v1::Limits& limits,
                                                                   const ModelConfig& model,
                                                                   const RunNumbers& numbers) {
  RequestBuilder builder(TrainingRequest::Kind::kUpdate, limits, model, numbers);
  v1::GroupPart part;
  *part.mutable_update() = std::move(request.header);
  RETURN_IF_ERROR(builder.Add(part));
  uint64_t num_rollouts = 0;
  for (v1::PromptGroup& group : request.groups) {
    num_rollouts += static_cast<uint64_t>(group.rollouts_size());
    *part.mutable_group() = std::move(group);
    RETURN_IF_ERROR(builder.Add(part));
  }
  part.mutable_end()->set_num_groups(request.groups.size());
  part.mutable_end()->set_num_rollouts(num_rollouts);
  RETURN_IF_ERROR(builder.Add(part));
  auto built = builder.Finish();
  if (built.ok()) RETURN_IF_ERROR((*built)->refused);
  return built;
}

std::string WithPathsOfLine(const std::string& text) { return absl::StrReplaceAll(text, {{"update.", "header."}}); }

}  // namespace stemma
