#include "tests/server/protocol/scenario_answers.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace stemma::server {

void FillResult(const Command& command, internal::v1::ResultChunk& chunk) {
  chunk.set_id(command.words.at(1));
  chunk.mutable_group()->set_uid(command.words.at(2));
  chunk.mutable_group()->set_dtype(v1::FLOAT32);
  v1::RolloutResult& rollout = *chunk.mutable_group()->add_rollouts();
  rollout.set_rollout_id(command.words.at(2) + "/0");
  chunk.set_dense(command.Has("dense"));
  const std::vector<float> numbers(command.Get("numbers", 0), chunk.dense() ? -0.5F : -0.25F);
  rollout.set_log_probs({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)});
}

void FillVerifyDone(const Command& command, internal::v1::VerifyDone& done) {
  FillDone(command, done);
  if (command.Has("fail")) return;
  for (internal::v1::Vote* vote : {done.mutable_reuse(), done.mutable_dense()}) {
    vote->set_yes(command.words.at(2) == "yes");
    vote->set_grad_norm_squared(4);
    internal::v1::NoVoteReason reason = internal::v1::NO_VOTE_REASON_UNSPECIFIED;
    if (command.Has("reason")) CHECK(internal::v1::NoVoteReason_Parse(command.options.at("reason"), &reason));
    vote->set_no_reason(reason);
  }
  for (uint64_t i = 0; i < command.Get("names", 1) && done.reuse().yes(); ++i) {
    internal::v1::GradientError& error = *done.add_gradients();
    error.set_name(absl::StrCat("p", i));
    error.set_error_squared(static_cast<double>(command.Get("error2", 0)));
    error.set_dense_squared(static_cast<double>(command.Get("dense2", 0)));
  }
}

}  // namespace stemma::server
