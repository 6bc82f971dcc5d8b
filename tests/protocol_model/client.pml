/* The client: it sends both requests at any time, each with its own id, again after each broken call, until it is told
 * their ends. */

/* The network delivers a call whose client has given it up. */
inline CopyArrives(request) {
  copy[request] = 0;
  printf("client: a late copy of the call for request %d arrives\n", request);
  OnSubmit(request, 0)
}

active proctype Client() {
  do
  :: over -> break
  :: atomic { STABLE && CALLS(0) -> printf("client: calls for request 0\n"); OnSubmit(0, 1) }
  :: atomic { STABLE && CALLS(1) -> printf("client: calls for request 1\n"); OnSubmit(1, 1) }
  :: atomic { call[0] == NEW && !call_faults && others < OTHERS -> call_faults = 1; others++; copy[0] = 1 }
  :: atomic { call[1] == NEW && !call_faults && others < OTHERS -> call_faults = 1; others++; copy[1] = 1 }
  :: atomic { STABLE && !over && copy[0] -> CopyArrives(0) }
  :: atomic { STABLE && !over && copy[1] -> CopyArrives(1) }
  :: atomic { call[0] == WAITING && !call_faults && others < OTHERS -> call_faults = 1; others++; call[0] = NEW }
  :: atomic { call[1] == WAITING && !call_faults && others < OTHERS -> call_faults = 1; others++; call[1] = NEW }
  :: atomic { STABLE && call[0] == WAITING && !cancels && others < OTHERS -> cancels = 1; others++; OnCancel() }
  od
}
