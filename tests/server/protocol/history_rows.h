// Rows of a History, and lives of servers that are made of them.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "server/protocol/history.h"

namespace stemma::server {

inline constexpr uint64_t kRequestsKept = 4;

inline internal::v1::LineageBegun Begun(const std::string& name, uint64_t weight_version) {
  internal::v1::LineageBegun row;
  row.set_name(name);
  row.set_weight_version(weight_version);
  return row;
}

inline internal::v1::RequestAccepted Accepted(const std::string& id, bool kept) {
  internal::v1::RequestAccepted row;
  row.set_request_id(id);
  row.set_steps_total(3);
  if (kept) row.mutable_spool()->set_name("spool-" + id);
  return row;
}

inline internal::v1::StepCommitted Committed(const std::string& id, uint32_t k, uint64_t step) {
  internal::v1::StepCommitted row;
  row.set_request_id(id);
  row.set_k(k);
  row.set_step(step);
  row.set_outcome(v1::StepResult::APPLIED);
  return row;
}

inline internal::v1::StepApplied Applied(const std::string& id, uint32_t k, uint64_t step) {
  internal::v1::StepApplied row;
  row.set_request_id(id);
  row.set_k(k);
  row.set_weights_digest("w" + std::to_string(step));
  row.mutable_result()->set_outcome(v1::StepResult::APPLIED);
  row.mutable_result()->set_step(step);
  row.mutable_result()->set_weight_version(step + 1);
  return row;
}

inline internal::v1::RequestFinished Finished(const std::string& id, v1::RequestState state) {
  internal::v1::RequestFinished row;
  row.set_request_id(id);
  row.set_state(state);
  return row;
}

inline internal::v1::KnownCheckpoint Saved(const std::string& lineage, uint64_t step) {
  internal::v1::KnownCheckpoint checkpoint;
  checkpoint.set_name("step-" + std::to_string(step));
  checkpoint.set_lineage(lineage);
  checkpoint.set_step(step);
  return checkpoint;
}

// Requests of one to three steps, some of which end early, are cancelled or lose their last step; a lineage that ends.
inline void Live(std::mt19937& random, History& history, int requests) {
  uint64_t step = 0;
  history.Start(1);
  history.BeginLineage(Begun("L", 1));
  for (int i = 0; i < requests; ++i) {
    const std::string id = "r" + std::to_string(i);
    history.Accept(Accepted(id, /*kept=*/true));
    const uint32_t steps = random() % 4;
    for (uint32_t k = 0; k < steps; ++k) {
      history.Commit(Committed(id, k, step + 1));
      if (random() % 8 == 0) {
        history.Undo(id, k);
        break;
      }
      history.Apply(Applied(id, k, ++step));
    }
    history.Finish(Finished(id, random() % 4 == 0 ? v1::CANCELLED : v1::DONE));
    if (random() % 40 == 0) {
      internal::v1::LostWeights lost;
      lost.set_lineage(history.state().lineage());
      lost.set_step(step);
      internal::v1::LineageBegun begun = Begun("L" + std::to_string(i), step + 2);
      *begun.mutable_lost() = lost;
      history.BeginLineage(begun);
      step = 0;
    }
  }
}

}  // namespace stemma::server
