/* The server: server/protocol, as the rows that it forces and the messages that it sends. A crash may come between any
 * two of its steps. */

#define NEXT_UNDECIDED(e) ((decision[AT(e, 0)] != 0) + (decision[AT(e, 1)] != 0))
#define APPLIED_STEPS(e) (applied[AT(e, 0)] + applied[AT(e, 1)])
#define HAS_UNAPPLIED(e) (NEXT_UNDECIDED(e) != APPLIED_STEPS(e))
/* Steps of it that were applied are not in the ranks' weights yet, and those before them are. */
#ifdef CANCEL_STOPS_HALFWAY
#define COMPUTES_AGAIN(e) false
#else
#define COMPUTES_AGAIN(e) (running == (e) && next_k < APPLIED_STEPS(e))
#endif

/* Ends a request in the journal. */
inline Finish(which, how) {
  printf("server: row FINISHED of request %d, %e after %d steps\n", request_of[which], how, APPLIED_STEPS(which));
  state[which] = how;
  num_open--;
  if
  :: running == which -> Leave()
  :: else
  fi;
  if
  :: request_of[which] == 0 -> cancel = 0
  :: else
  fi
}

/* No request's steps follow one another any more. */
inline Leave() { running = ENTRIES; next_k = 0 }

/* Ends a generation: whoever is in it starts again. What it ran waits for the next one. */
inline EndGeneration() {
  printf("server: generation %d ends\n", generation);
  Disconnect(0);
  Disconnect(1);
  serves = 0;
  weights_step = 0;
  Leave();
  Stop()
}

inline Stop() { phase = IDLE; entry = 0; step_k = 0; answered = 0; voted_no = 0; clip = 0 }

/* Sets `e` to the last entry of the request; ENTRIES: it has none. */
inline Find(request) {
  e = ENTRIES;
  for (i : 0 .. ENTRIES - 1) {
    if
    :: i < num_entries && request_of[i] == request -> e = i
    :: else
    fi
  }
  i = 0
}

/* Tells the client how its request ended. */
inline Tell(request, which) {
  call[request] = TOLD;
  outcome[request] = state[which];
  told_steps[request] = APPLIED_STEPS(which);
  printf("client: request %d is told %e after %d steps\n", request, state[which], told_steps[request]);
  Check(state[which] != DONE || told_steps[request] == STEPS_OF(request), CLIENT_TOLD_THE_TRUTH);
  Count(request, n);
  Check(n == told_steps[request], CLIENT_TOLD_THE_TRUTH);
  n = 0
}

/* Takes a call. `attends`: its client waits for the answer. */
inline OnSubmit(request, attends) {
  Find(request);
#ifdef NO_DEDUP
  if
  :: num_entries < ENTRIES -> e = ENTRIES
  :: else
  fi;
#endif
  if
  :: e < ENTRIES && state[e] == OPEN && attends -> call[request] = WAITING
  :: e < ENTRIES && state[e] != OPEN && attends -> Tell(request, e)
  :: e == ENTRIES && SERVING && num_entries < ENTRIES ->
    printf("server: row ACCEPTED of request %d\n", request);
    request_of[num_entries] = request;
    state[num_entries] = OPEN;
    num_entries++;
    num_open++;
    if
    :: attends -> call[request] = WAITING
    :: else
    fi
  :: else
  fi;
  e = 0
}

/* Ends the entry of request 0 now, or after the step that is decided. */
inline OnCancel() {
  printf("client: cancels request 0\n");
  Find(0);
  if
  :: e == ENTRIES || state[e] != OPEN
#ifdef CANCEL_FORGETS_THE_DECISION
  :: else -> Abort(); Finish(e, CANCELLED)
#else
  :: else ->
    if
    :: HAS_UNAPPLIED(e) || (phase == APPLYING && entry == e) || COMPUTES_AGAIN(e) -> cancel = 1
    :: else -> Abort(); Finish(e, CANCELLED)
    fi
#endif
  fi;
  e = 0
}

/* Stops the step of entry `e`, if one is prepared. */
inline Abort() {
  if
  :: phase == VOTING && entry == e -> SendBoth(ABORT, 0); Stop()
  :: else
  fi
}

#define ENTRY_0 (num_entries > 0 && request_of[0] == 0 -> 0 : 1)
#define CANCELS_NOW (cancel && phase == IDLE && state[ENTRY_0] == OPEN && !HAS_UNAPPLIED(ENTRY_0) && \
                     !COMPUTES_AGAIN(ENTRY_0))

/* Sends PREPARE of the next step: of the request that was decided next and that these ranks do not have, else of the
 * first open one. A request begins with its first step, whichever was decided: what it needs is made there. A request
 * without a next step is DONE. */
inline GoOn() {
  n = 0;
  e = ENTRIES;
  for (i : 0 .. 2 * ENTRIES - 1) { /* entries, and their steps, in the order in which they were decided */
    if
    :: decision[i] != 0 && n == weights_step && e == ENTRIES -> e = i / 2
    :: else
    fi;
    n = n + (decision[i] != 0)
  }
  for (i : 0 .. ENTRIES - 1) {
    if
    :: e == ENTRIES && state[i] == OPEN -> e = i
    :: else
    fi
  }
  i = 0;
  n = 0;
  entry = e;
  e = 0;
  if
  :: running != entry -> running = entry; next_k = 0
  :: else
  fi;
  step_k = next_k;
  if
  :: step_k == STEPS_OF(request_of[entry]) -> Finish(entry, DONE); Stop()
  :: else ->
    printf("server: PREPARE of step %d (request %d, k %d)\n", weights_step + 1, request_of[entry], step_k);
    SendBoth(PREPARE, 0);
    phase = VOTING
  fi
}

#define HERE AT(entry, step_k)

/* Forces the decision to disk. */
inline WriteCommitted() {
  printf("server: row COMMITTED of request %d, k %d, clip %d\n", request_of[entry], step_k, clip);
  decision[HERE] = 1 + clip;
  num_decided++;
  Place(weights_step, STEP(WORK(request_of[entry], step_k), clip))
}

inline SendApply() {
  printf("server: APPLY of step %d (request %d, k %d), clip %d\n", weights_step + 1, request_of[entry], step_k, clip);
  SendBoth(APPLY, clip)
}

/* The clip that this generation's ranks lead to: sums of another one may round otherwise. */
#define CLIP (generation % 2)

/* Decides once all votes are there. What the journal knows is carried out as it is. */
inline Decide() {
  answered = 0;
  if
  :: voted_no && decision[HERE] != 0 -> phase = GIVING_UP
  :: voted_no && decision[HERE] == 0 -> SendBoth(ABORT, 0); phase = FAILING
  :: !voted_no && decision[HERE] != 0 ->
    clip = decision[HERE] - 1;
#ifdef REPLAY_CLIPS_ANEW
    clip = CLIP;
#endif
    phase = COMMITTED
  :: !voted_no && decision[HERE] == 0 ->
    clip = CLIP;
#ifdef APPLY_BEFORE_COMMIT
    SendApply();
#else
    WriteCommitted();
#endif
    phase = COMMITTED
  fi;
  voted_no = 0
}

/* Passes the point of no return. */
inline AfterCommit() {
#ifdef APPLY_BEFORE_COMMIT
  if
  :: decision[HERE] == 0 -> WriteCommitted()
  :: else -> SendApply()
  fi;
#else
  SendApply();
#endif
  clip = 0;
  phase = APPLYING
}

/* Takes the step that every rank has applied. */
inline Complete() {
  answered = 0;
  if
  :: !applied[HERE] ->
    printf("server: row APPLIED of request %d, k %d\n", request_of[entry], step_k);
    applied[HERE] = 1;
    num_applied++
  :: else
  fi;
  weights_step++;
  next_k = step_k + 1;
  Stop();
  CheckServed()
}

/* A rank whose connection is gone, which the server has not noticed yet, is not asked. */
inline CheckServed() {
  Check(!SERVING || !connected[0] || length[0] == weights_step, SERVED_WEIGHTS_ARE_THE_LINEAGES);
  Check(!SERVING || !connected[1] || length[1] == weights_step, SERVED_WEIGHTS_ARE_THE_LINEAGES)
}

/* Counts an answer whose keys are those of what runs, and no other. */
inline OnWorkerMessage(r) {
  if
  :: !(serves && phase != IDLE && SAME_PLACE(m_term, TERM) && m_step == weights_step + 1 &&
       m_work == WORK(request_of[entry], step_k)) /* late, and harmless */
  :: else ->
    if
    :: kind == VOTE && phase == VOTING && !(answered & (1 << r)) ->
      answered = answered | (1 << r);
      voted_no = voted_no | (m_value == 0);
      if
      :: ENOUGH_VOTES -> Decide()
      :: else
      fi
    :: kind == APPLIED && phase == APPLYING && !(answered & (1 << r)) ->
      answered = answered | (1 << r);
      if
      :: ENOUGH_APPLIED -> Complete()
      :: else
      fi
#ifdef REFUSED_IS_ASKED_AGAIN
    :: kind == REFUSED -> Stop()
#else
    :: kind == REFUSED -> phase = GIVING_UP
#endif
    :: else
    fi
  fi;
  Forget()
}

/* Begins with the base weights, on all ranks. */
inline BeginGeneration() {
  generation++;
  printf("server: generation %d begins at the base\n", generation);
  serves = 1;
#ifdef NO_REPLAY
  weights_step = num_decided;
#endif
  for (i : 0 .. 1) {
    assert(empty(to_rank[i]));
    lives[i] = 1;
    connected[i] = 1;
    term[i] = TERM;
    at_step[i] = weights_step
  }
  i = 0;
  CheckServed()
}

/* Ends the server and starts the next one, which has the journal. */
inline CrashServer() {
  printf("server: CRASH\n");
  crashes++;
  if
  :: serves -> EndGeneration()
  :: else
  fi;
#ifdef EPOCH_IS_NOT_KEPT
  generation = 0;
#endif
#ifdef DECIDED_IS_ABORTED
  for (i : 0 .. 2 * ENTRIES - 1) {
    if
    :: decision[i] != 0 && !applied[i] -> decision[i] = 0; num_decided--
    :: else
    fi
  }
  i = 0;
#endif
  cancel = 0;
  for (i : 0 .. 1) {
    if
    :: call[i] == WAITING -> call[i] = NEW
    :: else
    fi
  }
  i = 0
}

#define ENDED (call[0] == TOLD && call[1] == TOLD && num_open == 0 && phase == IDLE && SERVING && \
               weights_step == num_decided && connected[0] && connected[1])

/* The end of a run: what clients were told is in the weights of every rank, and nothing else. */
inline CheckEnd() {
  for (i : 0 .. LENGTH - 1) {
    Check(weights[i] == order[i] && weights[LENGTH + i] == order[i], NOTHING_COMMITTED_IS_LOST)
  }
  Count(0, n);
  Check(n == told_steps[0], CLIENT_TOLD_THE_TRUTH);
  Count(1, n);
  Check(n == told_steps[1], CLIENT_TOLD_THE_TRUTH);
  n = 0
}

#define IS_KNOWN(request, e) (num_entries > e && request_of[e] == request)
#define CALLS(request) (call[request] == NEW && (SERVING || IS_KNOWN(request, 0) || IS_KNOWN(request, 1)))
#define IS_OPEN(request, e) (num_entries > e && request_of[e] == request && state[e] == OPEN)
#define IS_FINAL(request) (!IS_OPEN(request, 0) && !IS_OPEN(request, 1) && !IS_OPEN(request, 2))
/* Answers the call that waits. */
inline Answer(request) {
  Find(request);
  Tell(request, e);
  e = 0
}

active proctype Server() {
  do
  :: over -> break
  /* Events of the coordinator. */
  :: atomic { STABLE && !over && late ? [2, _, _, _, _, _] -> ReceiveLate(2); OnWorkerMessage(0) }
  :: atomic { STABLE && !over && late ? [3, _, _, _, _, _] -> ReceiveLate(3); OnWorkerMessage(1) }
#ifndef LOSS_IS_NOT_NOTICED
  :: atomic { STABLE && serves && (!connected[0] || !connected[1]) -> EndGeneration() }
#endif
  :: atomic { !serves && !lives[0] && !lives[1] -> BeginGeneration() }
  :: atomic { STABLE && CANCELS_NOW -> Finish(ENTRY_0, CANCELLED) }
  :: atomic { serves && phase == IDLE && !CANCELS_NOW && (weights_step < num_decided || num_open > 0) -> GoOn() }
  :: atomic { STABLE && call[0] == WAITING && IS_FINAL(0) -> Answer(0) }
  :: atomic { STABLE && call[1] == WAITING && IS_FINAL(1) -> Answer(1) }
  /* What an event led to, between which the server can die. */
  :: atomic { phase == COMMITTED -> AfterCommit() }
  :: atomic { phase == FAILING -> Finish(entry, FAILED); Stop() }
  :: atomic { phase == GIVING_UP -> EndGeneration() }
  :: atomic { crashes < CRASHES && !over -> CrashServer() }
  :: atomic { ENDED && !over -> CheckEnd(); over = 1 }
  od
}
