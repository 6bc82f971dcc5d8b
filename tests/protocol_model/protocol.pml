/* The step protocol as a model that spin searches exhaustively: a client, a server with a journal, and two ranks.
 *
 * protocol_model_test.py runs it as it is, and with each control: a macro that makes one mistake, which must be found.
 * A run has two requests, one of two steps and one of one. It has at most CRASHES deaths of the server or of a rank, at
 * any point, and at most OTHERS of these, each once at most:
 *   - a call that breaks, or one that arrives once more later;
 *   - a cancel;
 *   - a step on which a rank votes no;
 *   - a message that arrives after its connection has gone.
 *
 * What is left out, and why no fault of the protocol hides behind it:
 *   - The journal is the fold of its rows. A row is whole or absent (tests/server/store), and rows are forced in order.
 *   - A server that has just started has heard nothing yet, so a crash and the next start are one step.
 *   - Messages of one event are sent at once: one that was not sent any more is like one that its connection lost. The
 *     crash between a decision's row and its messages is a step of its own all the same.
 *   - A rank's answer is heard at once, or lost with its connection. An answer on its way is like a question that the
 *     rank has not read yet.
 *   - A rank dies when its connection ends; before its own end it may still act on what it was sent.
 *   - `generation` counts over all epochs. Keys are compared for equality alone, and the journal makes each pair of
 *     epoch and generation unique; EPOCH_IS_NOT_KEPT lets pairs return. Attempt and incarnation are more keys, which
 *     can only refuse more: a generation attempts a step of a request once, and has one incarnation of each rank.
 *   - One message is late: those that are refused change nothing, so the first one that counts would count alone.
 *   - Ranks are alike, so the first one that dies is rank 0.
 *   - UNAVAILABLE changes nothing: the client comes again once it would hear something else. An answer that is lost is
 *     like a call that broke before it.
 *
 * Not modelled: ways of recovery but the one that always works (all ranks begin at the base, and every decided step is
 * computed again), checkpoints, APPLY that makes weights not finite, skipped steps, lineages, draining, and budgets of
 * attempts. */

#ifndef CRASHES
#define CRASHES 3
#endif
#ifndef OTHERS
#define OTHERS 1
#endif
#define ENTRIES 3 /* of the journal: one more than there are requests, for NO_DEDUP */
#define LENGTH 4  /* of the weights: one more than there are steps */

/* A work is a request and a k; a step is a work with its clip factor; 0 is none. */
#define STEPS_OF(request) (2 - (request))
#define WORK(request, k) (2 * (request) + (k) + 1)
#define STEP(work, clip) (2 * (work) + (clip))
#define REQUEST(step) (((step) / 2 - 1) / 2)

/* What must hold, by the names that a trail prints:
 *   ONE_ORDER                        ranks and journal agree which step is the n-th, whenever one of them has it
 *   APPLIED_TWICE                    no step has two places in that order
 *   CLIENT_TOLD_THE_TRUTH            of a request the order has as many steps as its client was told, then and later
 *   NO_VOTE_IS_NEVER_APPLIED         a rank that voted no is not asked to apply
 *   SERVED_WEIGHTS_ARE_THE_LINEAGES  while clients are served, every rank has each step that the server counts
 *   NOTHING_COMMITTED_IS_LOST        at the end every rank has the whole order
 * Besides, every run ends, with every request final: no state is stuck (invalid end state), and none comes again
 * (non-progress cycle). */
mtype = { ONE_ORDER, APPLIED_TWICE, CLIENT_TOLD_THE_TRUTH, NO_VOTE_IS_NEVER_APPLIED,
          SERVED_WEIGHTS_ARE_THE_LINEAGES, NOTHING_COMMITTED_IS_LOST };
inline Check(holds, name) {
  if
  :: (holds) -> skip
  :: else -> printf("VIOLATED %e\n", name); assert(false)
  fi
}

/* The journal: the fold of its rows. An entry is an accepted request; entries run in their order. */
mtype = { OPEN, DONE, FAILED, CANCELLED };
byte num_entries;
byte request_of[ENTRIES];
mtype state[ENTRIES];
byte decision[2 * ENTRIES]; /* by entry and k: 0, or 1 + the clip of the row COMMITTED */
bit applied[2 * ENTRIES];   /* row APPLIED */
byte num_open, num_decided, num_applied;

/* What ranks ever had, or the journal decided, at each place of the one order. Only checks read it. */
byte order[LENGTH];

/* The server's memory: lost with it. */
mtype = { IDLE, VOTING, COMMITTED, APPLYING, FAILING, GIVING_UP };
mtype phase = IDLE;
bit serves;         /* a generation is there */
byte generation;
byte weights_step;  /* of the ranks, as the server knows */
byte entry, step_k; /* that run, unless IDLE */
byte running = ENTRIES, next_k; /* the entry whose steps follow one another, and the next of them */
byte answered;      /* by rank: a bit each */
bit voted_no;
bit clip;           /* of the step that is decided */
bit cancel;         /* request 0 is to end after the step that is decided */

/* Ranks: lost with them. `weights` are the steps that were applied since the base. */
bit lives[2]; /* it is in a generation; else it starts */
byte term[2], at_step[2], last_work[2];
mtype = { NONE, YES, NO };
mtype vote[2] = NONE;
byte length[2];
byte weights[2 * LENGTH];

/* Connections. A message is (kind, term, step, work, value): the keys, then the clip or the vote. */
mtype = { PREPARE, APPLY, ABORT, VOTE, APPLIED, REFUSED };
bit connected[2];
chan to_rank[2] = [4] of { mtype, byte, byte, byte, byte };
chan late = [1] of { byte, mtype, byte, byte, byte, byte }; /* to rank 0 or 1, or from 0 or 1: 2 or 3 */

/* The client, by request. */
mtype = { NEW, WAITING, TOLD };
mtype call[2] = NEW;
mtype outcome[2];
byte told_steps[2];
bit copy[2]; /* of a call, is delayed by the network */

/* What the run has had. */
byte crashes, others;
bit call_faults, no_votes, cancels, late_messages;
bit asymmetric; /* rank 0 died */
bit over;

/* Scratch of one atomic step, zero between two. */
byte i, n, e, m_term, m_step, m_work, m_value;
mtype kind = PREPARE, answer;

#define TERM generation
#define AT(e, k) (2 * (e) + (k))
/* Between two events of the coordinator, which are handled one after another. */
#define STABLE (phase == IDLE || phase == VOTING || phase == APPLYING)
/* As the product has it: a step that is decided and not applied yet is not waited for. */
#define SERVING (serves && weights_step >= num_applied)
#ifdef NO_FENCING
#define SAME_PLACE(theirs, mine) true
#else
#define SAME_PLACE(theirs, mine) ((theirs) == (mine))
#endif
#ifdef ONE_VOTE_IS_ENOUGH
#define ENOUGH_VOTES (answered != 0)
#else
#define ENOUGH_VOTES (answered == 3)
#endif
#ifdef ONE_APPLIED_IS_ENOUGH
#define ENOUGH_APPLIED (answered != 0)
#else
#define ENOUGH_APPLIED (answered == 3)
#endif

/* Notes that `step` is the n-th. A place has one step, and a step one place. */
inline Place(n, step) {
  if
  :: order[n] != 0 -> Check(order[n] == step, ONE_ORDER)
  :: else ->
    for (i : 0 .. LENGTH - 1) {
      Check(order[i] / 2 != step / 2, APPLIED_TWICE)
    }
    i = 0;
    order[n] = step
  fi
}

/* Counts the steps of `request` in the order. */
inline Count(request, result) {
  result = 0;
  for (i : 0 .. LENGTH - 1) {
    if
    :: order[i] != 0 && REQUEST(order[i]) == request -> result++
    :: else
    fi
  }
  i = 0
}

#include "network.pml"
#include "server.pml"
#include "rank.pml"
#include "client.pml"

init {
  atomic {
    run Rank(0);
    run Rank(1)
  }
}
