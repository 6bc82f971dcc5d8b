"""The client of a Stemma server.

    with stemma.Client("127.0.0.1:7070") as client:
        result = client.update_actor(groups, loss=stemma.grpo(), adam=stemma.adamw(1e-6))

A call may be repeated: it carries a request_id (made here unless given), and the server applies a request once. So what
answers UNAVAILABLE (a connection that fails, a server that starts, recovers or stops) is retried with the same id and
payload, and nothing else is.
Weights can be lost with their process, unless the server keeps what computes them again (durability); it then goes on from
its newest checkpoint, or else from the model directory, under a new *lineage*. A Client
holds the server to the first lineage that it hears of: on another one a call raises LineageLostError, which says which
steps are gone, before anything is trained, computed or exported. follow_lineage=True goes on instead.
Thread safety: a Client may be shared; each Future belongs to one thread at a time. Each process makes its own Client: in one that
was forked off, calls are a ValueError.
"""

import logging
import threading
import time
from typing import Any, Dict, List, Literal, Optional, Union, overload

import grpc

from . import _api_names, _proto, _tries, config, errors
from ._checkpoint_calls import CheckpointCalls
from ._connection import Connection
from ._export_calls import ExportCalls
from ._future import Future, about_request, interruptible
from ._log_prob_calls import LogProbCalls
from ._recording import Recording
from ._stub import TrainingStub
from ._tls import Tls
from ._tries import checked_s, deadline_of, in_time, is_over, left_s, ran_out
from ._update import update_parts
from ._verify_calls import VerifyCalls
from .groups import as_list, name_uids
from .results import UpdateResult

_LOG = logging.getLogger("stemma")
_CANCEL_S = 5.0
_ANSWER_S = 1.0         # beyond the time that a call has: a server that is there answers by then
_RETRY_DELAY_MAX_S = 5.0
_LOSSES_MAX = 3         # of workers in one call: what is sent may be what ends them, and a gang that is made again begins anew
_TRIES_UNTOLD = 3       # a second and a half, as a restart takes: the log speaks of longer ones


class Client(LogProbCalls, VerifyCalls, CheckpointCalls, ExportCalls):
    """A connection to one server. Close it, or use it in a `with`. A call whose timeout_s is over has another second: a server
    that is there answers by then."""

    def __init__(self, address, retries=60, retry_delay_s=0.2, recorder=None, connect_timeout_s=1.5,
                 follow_lineage=False, recovery_timeout_s=3600.0, tls: Optional[Tls] = None) -> None:
        """Makes a client; it connects at the first call.

        address         "host:port", the port from 1 to 65535
        retries         how often a call is tried again while the server is away; it is, only once it was reached. 60 take
                        about five minutes, in which a pod has come back on another machine. 0: never, whatever the server
                        says
        retry_delay_s   the first pause between two tries; it doubles up to 5 s
        recorder        a stemma.trace.TraceWriter that keeps every update request that a server accepted, once however often
                        it is sent under one request_id, by whichever clients of one server have it; or what has its
                        write_parts(parts). Where that raises, a warning says so, and the request goes on. What it lacks,
                        then or because submit ended before, is written where the request is sent again, or where attach
                        finds it and neither this process nor another sent anything else under its id
        connect_timeout_s   how long the first call waits for a server before it says that there is none
        follow_lineage  go on with whatever weights the server has, also after those trained so far are lost
        recovery_timeout_s  how long a call waits for a server that starts or recovers: that loads its model, computes its
                        steps again, or waits for workers. Such answers use up no retries; the log says what is waited for
        tls             a stemma.Tls: the connection is encrypted, and the server's certificate checked. None: plaintext
        """
        self._retries = config.whole("retries", retries)
        self._retry_delay_s = checked_s("retry_delay_s", retry_delay_s)
        self._recovery_timeout_s = checked_s("recovery_timeout_s", recovery_timeout_s)
        self._follow_lineage = config.checked_truth("follow_lineage", follow_lineage)
        self._recording = Recording(recorder)
        self._connection = Connection(address, checked_s("connect_timeout_s", connect_timeout_s), tls)
        self._stub = TrainingStub(self._connection.channel)
        self._lineage, self._step = None, None  # those that _saw keeps
        self._untold_until = 0.0  # of time.monotonic(): workers load what this client asked for
        self._lineage_lock = threading.RLock()  # a signal's handler may call, too

    @property
    def lineage(self) -> Optional[str]:
        """The lineage that calls are held to: the first that this client heard of (with follow_lineage the last, and
        calls are held to none). None before any."""
        return self._lineage

    def close(self) -> None:
        """Closes the connection; requests that were accepted go on at the server. Later calls are a ValueError."""
        self._connection.close()

    def __reduce__(self):
        """Refuses to be pickled: a connection belongs to its process."""
        raise TypeError("a stemma.Client cannot be pickled: make a Client in each process (a request that was sent is found "
                        "there by client.attach(request_id))")

    def __repr__(self):
        connection = getattr(self, "_connection", None)  # none where it could not be made
        lineage = "" if connection is None or self._lineage is None else f", lineage {self._lineage}"
        return f"Client({getattr(connection, 'address', None)!r}{lineage})"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # -------------------------------------------------------------------------------------------------------- training

    @overload
    def update_actor(self, groups: Any, loss: Any = ..., adam: Any = ..., wait: Literal[True] = ...,
                     timeout_s: Optional[float] = ..., *, old: Optional[str] = ..., ref: Optional[str] = ...,
                     mini_batch: Optional[int] = ..., epochs: int = ..., shuffle: bool = ..., seed: Optional[int] = ...,
                     request_id: Optional[str] = ..., expected_step: Optional[int] = ..., schedule: Optional[str] = ...,
                     on_nonfinite: Optional[str] = ..., return_log_probs: bool = ..., trace_step: Optional[int] = ...,
                     cancel_on_interrupt: bool = ...) -> UpdateResult:
        ...

    @overload
    def update_actor(self, groups: Any, loss: Any = ..., adam: Any = ..., *, wait: Literal[False],
                     timeout_s: Optional[float] = ..., old: Optional[str] = ..., ref: Optional[str] = ...,
                     mini_batch: Optional[int] = ..., epochs: int = ..., shuffle: bool = ..., seed: Optional[int] = ...,
                     request_id: Optional[str] = ..., expected_step: Optional[int] = ..., schedule: Optional[str] = ...,
                     on_nonfinite: Optional[str] = ..., return_log_probs: bool = ..., trace_step: Optional[int] = ...,
                     cancel_on_interrupt: bool = ...) -> Future:
        ...

    @overload
    def update_actor(self, groups: Any, loss: Any = ..., adam: Any = ..., wait: bool = ...,
                     timeout_s: Optional[float] = ..., *, old: Optional[str] = ..., ref: Optional[str] = ...,
                     mini_batch: Optional[int] = ..., epochs: int = ..., shuffle: bool = ..., seed: Optional[int] = ...,
                     request_id: Optional[str] = ..., expected_step: Optional[int] = ..., schedule: Optional[str] = ...,
                     on_nonfinite: Optional[str] = ..., return_log_probs: bool = ..., trace_step: Optional[int] = ...,
                     cancel_on_interrupt: bool = ...) -> Union[UpdateResult, Future]:
        ...

    def update_actor(self, groups, loss=None, adam=None, wait=True, timeout_s=None, **options):
        """Sends one request and returns its UpdateResult.

        groups, loss, adam  as in submit
        wait        False: returns the Future of submit instead
        timeout_s   how long sending and waiting may take together; TimeoutError after it, whose request_id is the one to send
                    again or to attach to. None: as long as it takes
        options     the other parameters of submit
        """
        deadline = deadline_of(timeout_s)
        future = self.submit(groups, loss, adam, timeout_s=timeout_s, **options)
        return future._result(timeout_s, deadline) if wait else future

    def submit(self, groups, loss=None, adam=None, *, old="auto", ref="auto", mini_batch=None, epochs=1, shuffle=False,
               seed=None, request_id=None, expected_step=None, schedule=None, on_nonfinite=None,
               return_log_probs=False, trace_step=None, cancel_on_interrupt=False, timeout_s=None) -> Future:
        """Sends one request; returns a Future once the server has accepted it.

        groups      a list or iterator of stemma.Group objects, or dicts in the trace's field names
        loss, adam  stemma.grpo() and the like, stemma.adamw(lr); dicts do as well
        old         where old log-probs come from: "client" (old_log_probs of the rollouts), "rollout" (rollout_log_probs),
                    "policy" or "checkpoint:NAME" (computed once, on the weights before the first step or a checkpoint's),
                    "on_policy" (the log-prob itself; one optimizer step only), None (the mode reads none). "auto" takes
                    the loss's `old`; where that is "auto" too: None if the mode reads none, else "client" or "rollout" if
                    the rollouts carry those log-probs, else "on_policy" for one step and "policy" for several. The
                    result's `effective` says what was sent
        ref         where reference log-probs come from: "client" (ref_log_prob of the rollouts), "policy", None,
                    "checkpoint:NAME". "auto": "client" if there is a KL term and the rollouts carry them, else None
        mini_batch  groups per optimizer step; where they do not divide the groups an epoch's last step has fewer, as a warning
                    says; None: all, one step an epoch
        epochs      passes over the groups, each of its own optimizer steps
        shuffle, seed   whether each epoch orders the groups anew, by this seed
        request_id  the request's name; None: a new one. The same id and payload again gives the same outcome
        expected_step   refuse unless the model is at this step
        schedule    "auto", "reuse", "dense"; None: the server's
        on_nonfinite    "abort" (default) or "skip": what becomes of a step whose gradient is not finite
        return_log_probs    the result has log_probs, those of the first epoch: each mini-batch's under the weights that its step
                    began with. Those of the weights before the request, for several steps: log_probs, called before
        trace_step  the step of this request, from 0, of which every worker records what it does when: `trace` of its
                    StepResult. None: nothing is recorded
        cancel_on_interrupt     Ctrl-C, or cancelling a task that awaits the Future, cancels the request at the server;
                    else it goes on there, as the error of Ctrl-C says
        timeout_s   how long to try until the server has accepted it; TimeoutError after it. None: as retries and
                    recovery_timeout_s say
        """
        deadline, groups = deadline_of(timeout_s), as_list(groups)
        parts = update_parts(groups, loss, adam, old, ref, mini_batch, epochs, shuffle, seed, request=config.without_none({
            "request_id": config.new_id() if request_id is None else config.checked_text("request_id", request_id),
            "expected_step": expected_step, "schedule": schedule, "on_nonfinite": on_nonfinite, "wait_ms": 0
        }), return_log_probs=return_log_probs, trace_step=trace_step)
        request = parts[0].update.request
        self._pin(request)
        lost, answers = [], []
        try:
            # To the end: a Ctrl-C between the answer and its record would leave a request that nobody can record.
            with interruptible(self, request.request_id, cancel_on_interrupt, accepted=answers), \
                    self._recording.sending(request.request_id, parts, lost):
                answers.append(self._sent(parts, groups, lambda timeout=None: self._noting_loss(
                    lambda: self._stub.UpdateActor(iter(parts), timeout=timeout), lost), deadline))
                self._saw(answers[0].lineage)
                self._recording.write(request.request_id, parts, stacklevel=2)
                return Future(self, answers[0], return_log_probs, cancel_on_interrupt)
        except errors.StemmaError as error:
            if not ran_out(error, deadline):
                raise
            raise about_request(TimeoutError(
                f"request {request.request_id} was not taken in {timeout_s} s ({error.message}); the server may have it: send it "
                "again with the same request_id"), request.request_id) from error

    def plan(self, groups, loss=None, adam=None, *, old="auto", ref="auto", mini_batch=None, epochs=1, shuffle=False,
             seed=None, schedule=None, timeout_s=None) -> Dict[str, Any]:
        """What submit would run, as a dict of PlanReport (proto/stemma/v1/plan.proto): waves, tokens, FLOPs, bytes. Nothing
        is computed and no id is used.

        groups, loss, adam, old, ref, mini_batch, epochs, shuffle, seed, schedule   as in submit
        timeout_s   how long to wait for it; TimeoutError after it, and the server plans no further. None: as long as it takes
        """
        groups = as_list(groups)
        parts = update_parts(groups, loss, adam, old, ref, mini_batch, epochs, shuffle, seed, request=config.without_none({
            "request_id": config.new_id(), "schedule": schedule, "validate_only": True}))
        with in_time(timeout_s, "a plan") as deadline:
            status = self._sent(parts, groups, lambda timeout=None: self._stub.UpdateActor(iter(parts), timeout=timeout), deadline)
        return _proto.to_dict(status.plan)

    # ------------------------------------------------------------------------------------------------------ small calls

    def info(self, *, timeout_s=None) -> Dict[str, Any]:
        """Versions, loss modes, the run configuration in force.

        timeout_s   how long to wait for it; TimeoutError after it. None: as long as it takes
        """
        request = _proto.GetServerInfoRequest()
        with in_time(timeout_s, "a question for the server's configuration") as deadline:
            return _proto.to_dict(self._retrying(lambda timeout=None: self._stub.GetServerInfo(request, timeout=timeout), deadline))

    def model(self, *, timeout_s=None) -> Dict[str, Any]:
        """The model's state, step, weight version, lineage, sizes; state_reason where nothing is served now: why.

        timeout_s   how long to wait for it; TimeoutError after it. None: as long as it takes
        """
        with in_time(timeout_s, "a question for the model's state") as deadline:
            reply = self._model(deadline)
        self._saw(reply.lineage, reply.step)
        return _proto.to_dict(reply)

    def requests(self) -> List[Dict[str, Any]]:
        """The requests that the server remembers, oldest first."""
        return _proto.to_dict(self._retrying(lambda: self._stub.ListRequests(_proto.ListRequestsRequest())))["requests"]

    def attach(self, request_id, log_probs=False) -> Future:
        """A Future of a request that was sent before, by this process or another.

        request_id  the request's
        log_probs   whether the result brings the log-probs of return_log_probs
        """
        status = _tries.run(self._get_request(request_id, 0))
        if _proto.to_dict(status)["state"] != "ROLLED_BACK":  # of what was lost nothing is known: its id may have had another payload
            self._saw(status.lineage)
            self._recording.found(request_id, stacklevel=2)
        return Future(self, status, log_probs)

    # --------------------------------------------------------------------------------------------------------- helpers

    def _model(self, deadline):
        return _tries.run(self._ask_for_model(deadline, self._stub))

    def _ask_for_model(self, deadline, stub):
        """Yields as _steps."""
        request = _proto.GetModelRequest()
        return self._steps(lambda timeout=None: stub.GetModel(request, timeout=timeout), deadline)

    def _get_request(self, request_id, wait_ms, lineage=None, deadline=None, stub=None):
        """Yields as _steps. stub: makes the calls; None: this client's."""
        stub = stub or self._stub
        request = _proto.GetRequestRequest(request_id=config.checked_text("request_id", request_id), wait_ms=wait_ms)
        return self._about(request_id, lambda timeout=None: stub.GetRequest(request, timeout=timeout), lineage, deadline, stub)

    def _cancel(self, request_id):
        request = _proto.CancelRequestRequest(request_id=request_id)
        return _tries.run(self._about(request_id, lambda: self._stub.CancelRequest(request)))

    def _try_cancel(self, request_id):
        """The state in which a cancel found or left the request; "" if there was no answer. Never tries again."""
        try:
            request = _proto.CancelRequestRequest(request_id=request_id)
            status = _tries.once(lambda: self._stub.CancelRequest(request, timeout=_CANCEL_S))
        except (grpc.RpcError, ValueError):  # gRPC's ValueError: the client was closed
            return ""
        return _proto.to_dict(status)["state"]

    def _sent(self, parts, groups, call, deadline=None):
        """The answer to messages of groups; a refusal has the names of the API, and the uid where the id that is refused was
        made of it."""
        try:
            return self._retrying(call, deadline)
        except errors.StemmaError as error:
            fields = name_uids(error.fields, parts)
            message = error.message
            if fields != error.fields:
                message = message.replace(" ".join(error.fields[0]), " ".join(fields[0]))
            fields, message = _api_names.in_fields(fields, message, parts, groups)
            if (fields, message) == (error.fields, error.message):
                raise
            raise type(error)(error.code, error.reason, message, fields, error.uid, error.metadata,
                              error.retry_after_s) from None

    def _noting_loss(self, call, lost):
        """The call's answer. A try whose answer never came is added to `lost` where it may have been done."""
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE and self._connection.may_be_done(error):
                lost.append(error)
            raise

    def _deleting(self, call):
        """Makes a call that removes something; what is not there any more was removed by a try whose answer was lost."""
        lost = []
        try:
            self._retrying(lambda: self._noting_loss(call, lost))
        except errors.StemmaError as error:
            if error.reason != "NOT_FOUND" or not lost:
                raise

    def _retrying(self, call, deadline=None):
        """The call's answer, as _steps gives it."""
        return _tries.run(self._steps(call, deadline))

    def _steps(self, call, deadline=None):
        """Yields the pause after each try (_tries.py), returns the call's answer; UNAVAILABLE is tried again, the same
        messages and so the same request_id, never sooner than the server asks for. One that says that it starts or
        recovers is there: tries are counted anew after it, except those in which workers were lost. deadline: of time.monotonic(), after which nothing is tried;
        the call gets it as its timeout."""
        attempt, delay_s, give_up, told = 0, self._retry_delay_s, time.monotonic() + self._recovery_timeout_s, False
        losses = 0
        while True:
            self._connection.reach(left_s(deadline) + _ANSWER_S)
            try:
                return call() if deadline is None else call(timeout=left_s(deadline) + _ANSWER_S)
            except grpc.RpcError as error:
                out = self._connection.explain(error)
                loads = self._retries > 0 and out.reason in errors.LOADING
                left = time.monotonic() < give_up if loads else attempt < self._retries
                losses += out.reason == "ATTEMPTS_EXHAUSTED"
                again = error.code() == grpc.StatusCode.UNAVAILABLE and left and losses < _LOSSES_MAX
                if not again or is_over(deadline):
                    raise self._explained(out) from None
            if loads and not told and time.monotonic() >= self._untold_until:
                told = True
                _LOG.warning("waiting for the server at %s, for at most %.0f s: %s", self._connection.address,
                             self._recovery_timeout_s, out.message)
            if not loads and attempt == _TRIES_UNTOLD:
                _LOG.warning("the server at %s is away, and is tried %d times more: %s", self._connection.address,
                             self._retries - attempt, out.message)
            delay_s = min(_RETRY_DELAY_MAX_S, delay_s)
            yield min(max(delay_s, out.retry_after_s or 0), left_s(deadline))
            attempt, delay_s = (0, self._retry_delay_s) if loads else (attempt + 1, 2 * delay_s)

    def _saw(self, lineage, step=None):
        """Pins the first lineage heard of, and keeps the highest step seen of it. Empty: the server says none."""
        with self._lineage_lock:
            if lineage and (self._lineage is None or (self._follow_lineage and lineage != self._lineage)):
                self._lineage, self._step = lineage, step
            elif lineage == self._lineage and step is not None:
                self._step = max(step, self._step or 0)

    def _pin(self, request):
        """Holds the server to the lineage that this client knows, if it knows one."""
        if self._lineage is not None and not self._follow_lineage:
            request.expected_lineage = self._lineage

    def _explained(self, error):
        """The error, with what only this client knows of a lineage that the server never had."""
        if not isinstance(error, errors.LineageLostError) or error.lost_step is not None or self._step is None:
            return error
        if error.lost_lineage != self._lineage:
            return error
        message = f"{error.message}; this client saw steps up to {self._step} of {self._lineage}: they are lost"
        return errors.LineageLostError(error.code, error.reason, message,
                                       metadata={**error.metadata, "lost_step": str(self._step)})

    def _about(self, request_id, call, lineage=None, deadline=None, stub=None):
        """Yields as _steps, for a call about a request that was sent before. lineage: that it trains; None: the pinned
        one. A server that does not know the request, because it was started again, is a LineageLostError. stub: is asked for
        the server's lineage; None: this client's."""
        try:
            return (yield from self._steps(call, deadline))
        except errors.StemmaError as error:
            lineage = lineage or (None if self._follow_lineage else self._lineage)
            if error.reason == "NOT_FOUND" and lineage:
                yield from self._check_same_server(request_id, lineage, deadline, stub or self._stub)
            raise

    def _check_same_server(self, request_id, lineage, deadline, stub):
        """Yields as _steps."""
        now = yield from self._ask_for_model(deadline, stub)
        if now.lineage != lineage:
            raise self._explained(errors.LineageLostError(
                "ABORTED", "LINEAGE_MISMATCH", f"the server does not know request {request_id}, and lineage {lineage} is gone "
                f"(was it started again?); the model is at step {now.step} of lineage {now.lineage}",
                metadata={"lineage": now.lineage, "step": str(now.step), "lost_lineage": lineage}))
