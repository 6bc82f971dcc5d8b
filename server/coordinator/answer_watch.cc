#include "server/coordinator/answer_watch.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace stemma::server {
namespace {

LoggedReason ReasonOf(Answering state, absl::Duration silent) {
  const std::string time = absl::FormatDuration(absl::Trunc(silent, absl::Seconds(1)));
  switch (state) {
    case Answering::kLate:
      return {LogLevel::kError,
              absl::StrCat("the server has decided nothing for ", time,
                           ": it is not ready; does the disk of --data hang? It also decides nothing while a "
                           "large journal is compacted")};
    case Answering::kHangs:
      return {LogLevel::kError, absl::StrCat("the server has decided nothing for ", time,
                                             ": it is not alive; look at the disk of --data, then start it again")};
    case Answering::kAnswers:
      break;
  }
  return {LogLevel::kWarning, absl::StrCat("the server decides again, after ", time)};
}

}  // namespace

AnswerWatch::AnswerWatch(absl::Time now, absl::Duration late_after, absl::Duration hangs_after)
    : late_after_(late_after), hangs_after_(hangs_after) {
  counted_.Until(now);
}

std::optional<AnswerWatch::Change> AnswerWatch::Look(absl::Time now, bool answered) {
  silent_ += counted_.Until(now);
  Answering state = Answering::kAnswers;
  if (!answered && silent_ >= late_after_) state = silent_ >= hangs_after_ ? Answering::kHangs : Answering::kLate;
  const absl::Duration silent = answered ? std::exchange(silent_, absl::ZeroDuration()) : silent_;
  if (std::exchange(state_, state) == state) return std::nullopt;
  return Change{.now = state, .reason = ReasonOf(state, silent)};
}

}  // namespace stemma::server
