#include "server/protocol/coordinator_state.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace stemma::server {

CoordinatorState::CoordinatorState(CoordinatorOptions options)
    : options_(std::move(options)),
      config_(options_.config),
      calibration_book_(options_.calibration),
      calibration_(NewCalibration("cpu")),
      table_(options_.config.limits().requests_kept()) {
  lineage_ = NewLineage();
}

Decision CoordinatorState::Handle(absl::Time now, const Event& event) {
  now_ = now;
  decision_ = Decision();
  Count();
  std::visit([this](const auto& e) { OnEvent(e); }, event);
  StartJobs();
  if (draining_ && !running_) FinishDrain();
  return std::exchange(decision_, Decision());
}

void CoordinatorState::Reply(CallId call, stemma::server::Reply reply) {
  decision_.actions.push_back(ReplyAction{call, std::move(reply)});
}

void CoordinatorState::Say(std::string_view reason) {
  absl::StrAppend(&decision_.reason, decision_.reason.empty() ? "" : "; ",
                  absl::string_view(reason.data(), reason.size()));
}

}  // namespace stemma::server
