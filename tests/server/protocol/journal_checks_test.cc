// What no server leaves in its journal is refused at the start, and what one leaves is not.
#include "server/protocol/journal_checks.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace stemma::server {
namespace {

using internal::v1::JournalState;
using internal::v1::KeptRequest;

void AddKnown(const std::string& id, v1::RequestState reached, JournalState& state) {
  internal::v1::KnownRequest& request = *state.add_requests();
  request.set_request_id(id);
  request.set_lineage("L");
  request.mutable_status()->set_state(reached);
}

void AddKept(const std::string& id, bool open, std::vector<std::pair<uint32_t, uint64_t>> steps, JournalState& state) {
  KeptRequest& kept = *state.add_kept();
  kept.set_request_id(id);
  kept.set_open(open);
  for (const auto& [k, step] : steps) {
    kept.add_steps()->set_applied(true);
    internal::v1::StepCommitted& decision = *kept.mutable_steps()->rbegin()->mutable_decision();
    decision.set_k(k);
    decision.set_step(step);
    decision.set_outcome(v1::StepResult::APPLIED);
  }
}

// Two requests that are done, one that is dropped already, one that runs: k 1 of it had nothing to compute.
JournalState GoodState() {
  JournalState state;
  state.set_epoch(3);
  state.set_lineage("L");
  state.set_step(5);
  AddKept("old", /*open=*/false, {{0, 1}}, state);
  AddKnown("a", v1::DONE, state);
  AddKept("a", /*open=*/false, {{0, 2}, {1, 3}}, state);
  AddKnown("failed", v1::FAILED, state);
  AddKnown("b", v1::APPLIED, state);
  AddKept("b", /*open=*/true, {{0, 4}, {2, 5}}, state);
  state.mutable_kept()->rbegin()->mutable_steps(1)->set_applied(false);  // decided, and not applied yet
  for (int k = 0; k < 2; ++k) state.mutable_requests()->rbegin()->mutable_result()->add_steps();
  AddKnown("waits", v1::ACCEPTED, state);
  for (const char* name : {"one", "two"}) state.add_checkpoints()->set_name(name);
  return state;
}

TEST(JournalChecksTest, WhatAServerLeavesIsTaken) {
  EXPECT_TRUE(CheckJournalState(JournalState()).ok());
  EXPECT_TRUE(CheckJournalState(GoodState()).ok()) << CheckJournalState(GoodState());
  // A step that dropped its gradients has the number of the one before it; what a checkpoint covers is kept no more.
  JournalState state = GoodState();
  state.mutable_kept(1)->mutable_steps(1)->mutable_decision()->set_outcome(v1::StepResult::SKIPPED_NONFINITE);
  state.mutable_kept(1)->mutable_steps(1)->mutable_decision()->set_step(2);
  for (int i = 0; i < 2; ++i)
    state.mutable_kept(2)->mutable_steps(i)->mutable_decision()->set_step(3u + static_cast<uint64_t>(i));
  state.set_step(4);
  EXPECT_TRUE(CheckJournalState(state).ok()) << CheckJournalState(state);
  state.mutable_kept()->DeleteSubrange(0, 1);
  EXPECT_TRUE(CheckJournalState(state).ok()) << CheckJournalState(state);
}

TEST(JournalChecksTest, WhatNoServerLeavesIsRefusedByWhatIsWrong) {
  const std::pair<const char*, std::function<void(JournalState&)>> cases[] = {
      {"began", [](JournalState& s) { s.set_epoch(UINT64_MAX); }},
      {"a is there twice", [](JournalState& s) { AddKnown("a", v1::FAILED, s); }},
      {"waits is there twice", [](JournalState& s) { AddKnown("waits", v1::ACCEPTED, s); }},
      {"\"\" is not a valid name", [](JournalState& s) { AddKnown("", v1::DONE, s); }},
      {"../up", [](JournalState& s) { AddKnown("../up", v1::DONE, s); }},
      {"failed is in state 0", [](JournalState& s) { s.mutable_requests(1)->mutable_status()->clear_state(); }},
      {"failed is in state 99",
       [](JournalState& s) { s.mutable_requests(1)->mutable_status()->set_state(static_cast<v1::RequestState>(99)); }},
      {"lineage M, not L", [](JournalState& s) { s.mutable_requests(2)->set_lineage("M"); }},
      {"lost", [](JournalState& s) { s.mutable_requests(2)->set_lost_step(1); }},
      {"a are kept", [](JournalState& s) { s.mutable_kept(1)->set_open(true); }},
      {"b are kept", [](JournalState& s) { AddKept("b", /*open=*/true, {}, s); }},
      {"of failed are kept, and none", [](JournalState& s) { AddKept("failed", /*open=*/false, {}, s); }},
      {"step 1 of a follows step 1",
       [](JournalState& s) { s.mutable_kept(1)->mutable_steps(0)->mutable_decision()->set_step(1); }},
      {"step 3 of b follows step 3",
       [](JournalState& s) { s.mutable_kept(2)->mutable_steps(0)->mutable_decision()->set_step(3); }},
      {"step 4 of b follows step 1", [](JournalState& s) { s.mutable_kept()->DeleteSubrange(1, 1); }},
      {"k=0 of a", [](JournalState& s) { s.mutable_kept(1)->mutable_steps(1)->mutable_decision()->set_k(0); }},
      {"a step of b was passed over", [](JournalState& s) { s.mutable_kept(2)->mutable_steps(0)->set_applied(false); }},
      {"step k=2 of b is decided, and k=1 is the next one",
       [](JournalState& s) { s.mutable_requests(2)->mutable_result()->mutable_steps()->RemoveLast(); }},
      {"step k=4294967294 of b is decided, and k=2 is the next one",
       [](JournalState& s) { s.mutable_kept(2)->mutable_steps(1)->mutable_decision()->set_k(4294967294); }},
      {"a ended before", [](JournalState& s) { s.mutable_kept(1)->mutable_steps(1)->set_applied(false); }},
      {"old ended before", [](JournalState& s) { s.mutable_kept(0)->mutable_steps(0)->set_applied(false); }},
      {"checkpoint one is there twice", [](JournalState& s) { s.mutable_checkpoints(1)->set_name("one"); }},
      {"is not a valid name", [](JournalState& s) { s.mutable_checkpoints(1)->set_name("../one"); }},
      {"checkpoint two is at step 6, beyond step 5",
       [](JournalState& s) {
         s.mutable_checkpoints(1)->set_lineage("L");
         s.mutable_checkpoints(1)->set_step(6);
       }},
      {"step 5 is the last one, not 6", [](JournalState& s) { s.set_step(6); }},
      {"step 0 of old", [](JournalState& s) { s.mutable_kept(0)->mutable_steps(0)->mutable_decision()->set_step(0); }},
  };
  for (const auto& [what, spoil] : cases) {
    JournalState state = GoodState();
    spoil(state);
    const absl::Status status = CheckJournalState(state);
    EXPECT_TRUE(absl::IsDataLoss(status)) << what << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), what)) << what << ": " << status;
  }
  JournalState stepped;
  stepped.set_step(1);
  EXPECT_TRUE(absl::StrContains(CheckJournalState(stepped).message(), "steps of no lineage"));
  JournalState nameless = GoodState();
  nameless.clear_lineage();
  for (auto& request : *nameless.mutable_requests()) request.clear_lineage();
  EXPECT_TRUE(absl::IsDataLoss(CheckJournalState(nameless)));
}

}  // namespace
}  // namespace stemma::server
