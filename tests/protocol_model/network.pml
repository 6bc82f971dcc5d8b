/* Connections between the server and the ranks: they keep the order of messages while they last; at their end, what is
 * under way is lost, or late. */

#define MAY_BE_LATE (!late_messages && others < OTHERS)

/* Empties a connection that is gone: each message is lost, or late. */
inline Break(from, whose) {
  do
  :: from ? kind, m_term, m_step, m_work, m_value ->
    if
    :: true
    :: MAY_BE_LATE ->
      late_messages = 1;
      others++;
      late ! whose, kind, m_term, m_step, m_work, m_value
    fi
  :: empty(from) -> break
  od;
  Forget()
}

/* Clears the message that was read. */
inline Forget() { kind = PREPARE; m_term = 0; m_step = 0; m_work = 0; m_value = 0 }

inline SendTo(r, what, value) {
  if
  :: connected[r] ->
    assert(nfull(to_rank[r]));
    to_rank[r] ! what, TERM, weights_step + 1, WORK(request_of[entry], step_k), value
  :: !connected[r]
  :: !connected[r] && MAY_BE_LATE ->
    late_messages = 1;
    others++;
    late ! r, what, TERM, weights_step + 1, WORK(request_of[entry], step_k), value
  fi
}

inline SendBoth(what, value) { SendTo(0, what, value); SendTo(1, what, value) }

#define RECEIVE(channel) channel ? kind, m_term, m_step, m_work, m_value
inline ReceiveLate(whose) {
  late ? eval(whose), kind, m_term, m_step, m_work, m_value;
  if
  :: whose < 2 -> printf("network: a late %e of generation %d reaches rank %d\n", kind, m_term, whose)
  :: else -> printf("network: a late %e of generation %d from rank %d reaches the server\n", kind, m_term, whose - 2)
  fi
}

/* Ends the process, whose weights go with it. What it did not read is lost, or late for the next one. */
inline Exit(r) {
  printf("rank %d: exits\n", r);
  connected[r] = 0;
  lives[r] = 0;
  term[r] = 0;
  at_step[r] = 0;
  last_work[r] = 0;
  vote[r] = NONE;
  length[r] = 0;
  for (i : 0 .. LENGTH - 1) {
    weights[LENGTH * r + i] = 0
  }
  i = 0;
  Break(to_rank[r], r)
}

/* A rank without a connection that has read all that it was sent has nothing more to do. */
inline ExitWhenDone(r) {
  if
  :: lives[r] && !connected[r] && len(to_rank[r]) == 0 -> Exit(r)
  :: else
  fi
}

inline Disconnect(r) {
  connected[r] = 0;
  ExitWhenDone(r)
}
