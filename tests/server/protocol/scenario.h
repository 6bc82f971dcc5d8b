// Runs CoordinatorState on a text: lines that start with '>' are events, the lines below each are the actions that must
// follow. RunScenario returns the text as it really went, so a test compares two texts.
//
//   > mesh [dp=COPIES] [tp=RANKS]             (first of all; else one rank)
//   > replays [dp=COPIES] [tp=RANKS] [kept=N] (first of all: requests are kept; clients may ask for the N newest that
//                                             have ended, else 3)
//   > rows                                    (from now on rows of the journal are shown)
//   > incidents                               (from now on incidents are shown)
//   > logs                                    (from now on lines of the log are shown, but those of the level info)
//   > damage                                  (no kept request can be read)
//   > automatic [every=STEPS] [minutes=M]     (first of all: checkpoints are saved by themselves)
//   > damage CHECKPOINT                       (what is read of it is wrong, until `repair CHECKPOINT`)
//   > forget CHECKPOINT                       (its folder is removed by somebody)
//   > foreign CHECKPOINT                      (it is of another model)
//   > copied CHECKPOINT step=N of=LINEAGE weights=DIGEST (somebody copies its folder here; the next server finds it)
//   > readings hold|begin|now|end             (what clients ask for from now on is read later; has begun, and ends
//                                             later; at once again; now)
//   > full [off=1]                            (no checkpoint can be written, or again)
//   > room BYTES                              (that the journal's disk has left)
//   > disk hangs|refuses|answers              (folders, commits and removals of checkpoints are ended when it answers;
//                                             folders and removals fail; all goes on)
//   > disk reads                              (a commit or a reading says that it has read on)
//   > new [resume=CHECKPOINT] [dtype=D]       (a server with a new journal finds the checkpoints that there are)
//   > restart [replays|rewinds]               (the server's process ends and another one starts, which keeps
//                                             requests or does not; else as before)
//   > register SESSION INCARNATION [host=H] [device=D] [address=A] [version=V] [cores=N] [free=BYTES]
//   > store ADDRESS                           > lose SESSION
//   > ready SESSION [weights=DIGEST] [hardware=NAME] [off=KERNEL]
//   > advance SECONDS                         (time passes, with every tick that is wanted; then a tick)
//   > beat SECONDS [moving]                   (so does it, and each second the worker's heartbeat says that its engine
//                                             moves, or not; in a mesh each worker's, and one moves)
//   > asleep SECONDS                          (the server does not run: time passes without a tick)
//   > hung SECONDS                            (what comes in the next SECONDS is handled at their end, all at once)
//   > submit CALL ID [steps=K] [payload=TEXT] [wait=MS] [expect=STEP] [empty=K] [empty_from=K] [for_log_probs=K]
//            [max_norm=C] [skip] [validate] [pass] [bytes=N] [results] [trace=K] [slow=SECONDS] [needs=BYTES] [refused]
//            [unread] [by_ranks]                (refused before its end; other ranks have other mini-batches of it)
//   > save CALL [NAME] [state=TEXT] [pinned] [lineage=L]   > load CALL [NAME] [lineage=L]   > checkpoints CALL
//   > verify CALL NAME   > pin CALL NAME   > unpin CALL NAME   > delete CALL NAME
//   > staged JOB [fail] [session=S]           > saved JOB [weights=DIGEST] [fail] [session=S]
//   > log_prob CALL    > export CALL NAME [dtype=D] [absent]     (no export has the name)
//   > get CALL ID [wait=MS]    > cancel CALL ID    > results CALL ID
//   > list CALL        > model CALL           > info CALL            > gone CALL        > drain
//   > hold                                    (from now on plans are made by `planned` only, else at once)
//   > planned PLAN [fail]
//   > vote yes|no|empty [norm2=X] [reason=R] [spans=N] [rows=N] [KEY=VALUE...]
//   > applied [nonfinite=NAME] [weights=DIGEST] [spans=N] [KEY=VALUE...]
//   > refused [KEY=VALUE...]
//            of the last Prepare's key to that session, changed by step=, attempt=, k=, epoch=, generation=,
//            incarnation=, id=, session=
//   > verify_group CALL [tokens=N] [expect=STEP] [lineage=L] [needs=BYTES] [nothing] [old=CHECKPOINT]
//   > result ID UID [dense]    > log_prob_done ID [fail]        > export_done ID
//   > verify_done ID yes|no [reason=R] [error2=X] [dense2=X] [names=N] [fail] [session=S]    (of both runs)
//
// A Prepare shows its denominator and prompt-mean weights, an Apply its clip factor, all with the digits that give the
// double back; a refusal whether it says that the id is known; an applied step shows the bytes that its row of the
// plan's report predicts. A model that serves nothing says why. A Prepare that asks for spans shows how many, an info
// the hardware, kernels and phases of ranks that have any, a step that has a trace shows each rank's host, device and
// how many it recorded.
#pragma once

#include <string>

namespace stemma::server {

std::string RunScenario(const std::string& text);

}  // namespace stemma::server
