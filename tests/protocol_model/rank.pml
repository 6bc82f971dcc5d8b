/* A rank: worker/engine/fence and what it guards. It has weights until its process ends. */

#define PLACED(r) (SAME_PLACE(m_term, term[r]) && m_step == at_step[r] + 1)

/* Answers the server, which hears it at once, unless the connection is gone: then it is lost, or late. */
inline Send(r) {
  kind = answer;
  answer = 0;
  if
  :: connected[r] -> OnWorkerMessage(r)
  :: !connected[r]
  :: !connected[r] && MAY_BE_LATE ->
    late_messages = 1;
    others++;
    late ! 2 + r, kind, m_term, m_step, m_work, m_value
  fi
}

/* Adds a step to the weights. */
inline Train(r, step) {
  Place(length[r], step);
  weights[LENGTH * r + length[r]] = step;
  length[r]++
}

/* Votes, and changes nothing that outlives the attempt. */
inline OnPrepare(r) {
  last_work[r] = m_work;
#ifdef MUTATE_IN_PREPARE
  Train(r, STEP(m_work, CLIP));
#endif
  if
  :: vote[r] = YES
  :: !no_votes && others < OTHERS -> no_votes = 1; others++; vote[r] = NO
  fi;
  printf("rank %d: VOTE %e on step %d\n", r, vote[r], m_step);
  answer = VOTE;
  m_value = (vote[r] == YES)
}

inline OnApply(r) {
  printf("rank %d: applies step %d, work %d clip %d\n", r, m_step, m_work, m_value);
  Check(vote[r] == YES, NO_VOTE_IS_NEVER_APPLIED);
#ifndef MUTATE_IN_PREPARE
  Train(r, STEP(m_work, m_value));
#endif
  at_step[r]++;
  vote[r] = NONE;
  last_work[r] = 0;
  answer = APPLIED;
  m_value = 0
}

inline OnServerMessage(r) {
  if
  :: !PLACED(r) /* refused, and its server is gone or has gone on */
  :: else ->
    if
    :: kind == PREPARE && m_work != last_work[r] -> OnPrepare(r)
    :: kind == PREPARE && m_work == last_work[r] -> answer = REFUSED; m_value = 0
    :: kind == APPLY && vote[r] != NONE && m_work == last_work[r] -> OnApply(r)
    :: kind == APPLY && !(vote[r] != NONE && m_work == last_work[r]) -> answer = REFUSED; m_value = 0
    :: kind == ABORT && m_work == last_work[r] -> vote[r] = NONE
    :: kind == ABORT && m_work != last_work[r]
    fi
  fi;
  if
  :: answer != 0 -> Send(r)
  :: else
  fi;
  Forget()
}

proctype Rank(byte r) {
  do
  :: over -> break
  :: atomic { lives[r] && STABLE && nempty(to_rank[r]) -> RECEIVE(to_rank[r]); OnServerMessage(r); ExitWhenDone(r) }
  :: atomic { lives[r] && STABLE && !over && late ? [eval(r), _, _, _, _, _] -> ReceiveLate(r); OnServerMessage(r) }
  :: atomic { lives[r] && !connected[r] -> Exit(r) }
  :: atomic { connected[r] && crashes < CRASHES && !over && (r == 0 || asymmetric) ->
       printf("rank %d: CRASH\n", r);
       crashes++;
       asymmetric = 1;
       Disconnect(r)
     }
  od
}
