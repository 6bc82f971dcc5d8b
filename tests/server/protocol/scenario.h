// Runs CoordinatorState on a text: lines that start with '>' are events, the lines below each are the actions that must
// follow. RunScenario returns the text as it really went, so a test compares two texts.
//
//   > mesh dp=RANKS                           (first of all; else one rank)
//   > register SESSION INCARNATION [host=H] [device=D] [address=A] [version=V] [cores=N] [free=BYTES]
//   > store ADDRESS                           > ready SESSION [weights=DIGEST]        > lose SESSION
//   > advance SECONDS                         (time passes, with every tick that is wanted; then a tick)
//   > beat SECONDS [moving]                   (so does it, and each second the worker's heartbeat says that its engine
//                                             moves, or not; in a mesh each worker's, and one moves)
//   > asleep SECONDS                          (the server does not run: time passes without a tick)
//   > submit CALL ID [steps=K] [payload=TEXT] [wait=MS] [expect=STEP] [empty=K] [max_norm=C] [skip] [validate] [pass]
//            [bytes=N] [results] [trace=K] [slow=SECONDS] [needs=BYTES]
//   > log_prob CALL    > export CALL NAME     > get CALL ID [wait=MS]    > cancel CALL ID    > results CALL ID
//   > list CALL        > model CALL           > gone CALL            > drain
//   > hold                                    (from now on plans are made by `planned` only, else at once)
//   > planned PLAN [fail]
//   > vote yes|no|empty [norm2=X] [reason=R] [spans=N] [KEY=VALUE...]
//   > applied [nonfinite=NAME] [spans=N] [KEY=VALUE...]
//   > refused [KEY=VALUE...]
//            of the last Prepare's key to that session, changed by step=, attempt=, k=, epoch=, generation=,
//            incarnation=, id=, session=
//   > result ID UID    > log_prob_done ID [fail]                > export_done ID
//
// A Prepare shows its denominator and prompt-mean weights, an Apply its clip factor, all with the digits that give the
// double back; an applied step shows the bytes that its row of the plan's report predicts. A Prepare that asks for
// spans shows how many, a step that has a trace shows each rank's host, device and how many it recorded.
#pragma once

#include <string>

namespace stemma::server {

std::string RunScenario(const std::string& text);

}  // namespace stemma::server
