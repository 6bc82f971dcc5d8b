// Whether the coordinator still decides, by the answers to a question that is put to it again and again: where it
// hangs, as in a write to a disk that does not answer, none comes. Pure.
//
// Only time in which the process itself was awake counts (CountedTime): one that was stopped, alone or with its whole
// machine, was late with no answer.
//
// kAnswers -> kLate after `late_after` without an answer -> kHangs after `hangs_after`; any -> kAnswers with an answer.
#pragma once

#include <optional>

#include "absl/time/time.h"
#include "server/protocol/events.h"
#include "server/protocol/job_watch.h"

namespace stemma::server {

enum class Answering { kAnswers, kLate, kHangs };

class AnswerWatch {
 public:
  struct Change {
    Answering now = Answering::kAnswers;
    LoggedReason reason;
  };

  // The first question is put at `now`. REQUIRES: late_after < hangs_after.
  AnswerWatch(absl::Time now, absl::Duration late_after, absl::Duration hangs_after);

  // Lets the time since the last look pass. `answered`: whether the question that waited then has its answer. Returns
  // what has changed by that.
  std::optional<Change> Look(absl::Time now, bool answered);

 private:
  const absl::Duration late_after_, hangs_after_;
  CountedTime counted_;
  absl::Duration silent_;
  Answering state_ = Answering::kAnswers;
};

}  // namespace stemma::server
