"""The client of a Stemma server.

    with stemma.Client("127.0.0.1:50051") as client:
        result = client.update_actor(groups, loss=stemma.grpo(), adam=stemma.adamw(1e-6), old="policy")

A call may be repeated: it carries a request_id (made here unless given), and the server applies a request once. So a
connection that fails is retried with the same id and payload, and nothing else is retried.
Weights can be lost with their process; the server then goes on from the model directory under a new *lineage*. A Client
holds the server to the first lineage that it hears of: on another one a call raises LineageLostError, which says which
steps are gone, before anything is trained, computed or exported. follow_lineage=True goes on instead.
Thread safety: a Client may be shared; each Future belongs to one thread at a time.
"""

import threading
import time
import uuid

import grpc

from . import _proto, config, errors, results
from ._stub import TrainingStub
from .groups import parts as encode

_RECEIVE_BYTES_MAX = 64 << 20
_POLL_MS = 20_000
_RETRY_DELAY_MAX_S = 5.0
_FINAL = ("DONE", "FAILED", "CANCELLED", "ROLLED_BACK")


class Client:
    def __init__(self, address, retries=6, retry_delay_s=0.2, recorder=None, follow_lineage=False):
        """address: "host:port". recorder: a stemma.trace.TraceWriter that keeps every update request sent.
        follow_lineage: go on with whatever weights the server has, also after those trained so far are lost."""
        self._channel = grpc.insecure_channel(address, options=[
            ("grpc.max_receive_message_length", _RECEIVE_BYTES_MAX), ("grpc.max_send_message_length", -1)])
        self._stub = TrainingStub(self._channel)
        self._retries, self._retry_delay_s = retries, retry_delay_s
        self._recorder = recorder
        self._follow_lineage = follow_lineage
        self._lineage, self._step = None, None  # those that _saw keeps
        self._lineage_lock = threading.Lock()

    @property
    def lineage(self):
        """The lineage that calls are held to: the first that this client heard of (with follow_lineage the last, and
        calls are held to none). None before any."""
        return self._lineage

    def close(self):
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -------------------------------------------------------------------------------------------------------- training

    def update_actor(self, groups, loss=None, adam=None, wait=True, timeout_s=None, **options):
        """Sends one request and returns its UpdateResult; with wait=False a Future. Options: see submit."""
        future = self.submit(groups, loss, adam, **options)
        return future.result(timeout_s) if wait else future

    def submit(self, groups, loss=None, adam=None, *, old="policy", ref=None, mini_batch=None, epochs=1, shuffle=False,
               seed=None, request_id=None, expected_step=None, schedule=None, on_nonfinite=None,
               return_log_probs=False):
        """Sends one request; returns a Future once the server has accepted it.

        groups      stemma.Group objects, or dicts in the trace's field names
        loss, adam  stemma.grpo() and the like, stemma.adamw(lr); dicts do as well
        old, ref    where old and reference log-probs come from: "policy" (computed once, on the weights before the first
                    step), "client" (sent with the rollouts), old also "rollout", "on_policy"; None: none
        mini_batch  groups per optimizer step; None: all, one step an epoch
        schedule    "auto", "reuse", "dense"; None: the server's
        on_nonfinite    "abort" (default) or "skip"
        """
        header = self._update_header(loss, adam, old, ref, mini_batch, epochs, shuffle, seed, request_id, expected_step,
                                     schedule, on_nonfinite, return_log_probs, num_groups=len(groups))
        header.request.wait_ms = 0
        self._pin(header.request)
        parts = encode("update", header, groups)
        status = self._retrying(lambda: self._stub.UpdateActor(iter(parts)))
        self._saw(status.lineage)
        if self._recorder is not None:
            self._recorder.write_parts(parts)
        return Future(self, status, return_log_probs)

    def plan(self, groups, loss=None, adam=None, *, old="policy", ref=None, mini_batch=None, epochs=1, shuffle=False,
             seed=None, schedule=None):
        """What submit would run: waves, tokens, FLOPs, bytes. Nothing is computed and no id is used."""
        header = self._update_header(loss, adam, old, ref, mini_batch, epochs, shuffle, seed, None, None, schedule, None,
                                     False, num_groups=len(groups))
        header.request.validate_only = True
        parts = encode("update", header, groups)
        return _proto.to_dict(self._retrying(lambda: self._stub.UpdateActor(iter(parts))).plan)

    def log_probs(self, groups, temperature=1.0, entropy=False, weights="policy", schedule=None):
        """{rollout_id: RolloutLogProbs} of the responses under the current weights."""
        header = config.fill_message(_proto.LogProbHeader(), {
            "request": _without_none({"request_id": _new_id(), "schedule": schedule}),
            "weights": weights, "temperature": temperature, "entropy": entropy})
        self._pin(header.request)
        parts = encode("log_prob", header, groups)
        out = self._retrying(lambda: results.log_probs(self._stub.ComputeLogProb(iter(parts))))
        for lineage in {rollout.lineage for rollout in out.values()}:
            self._saw(lineage)
        return out

    def read_log_probs(self, request_id):
        """{rollout_id: RolloutLogProbs} of a finished request that was sent with return_log_probs."""
        request = _proto.ReadResultsRequest(request_id=request_id)
        return self._retrying(lambda: results.log_probs(self._stub.ReadResults(request)))

    # ------------------------------------------------------------------------------------------------------ small calls

    def export(self, name, dtype=None):
        """Writes the current weights as a Hugging Face directory <data>/exports/<name>; returns its path."""
        request = _proto.ExportWeightsRequest(**_without_none({"name": name, "dtype": dtype}))
        self._pin(request)
        reply = self._retrying(lambda: self._stub.ExportWeights(request))
        self._saw(reply.lineage, reply.step)
        return reply.path

    def info(self):
        """Versions, loss modes, the run configuration in force."""
        return _proto.to_dict(self._retrying(lambda: self._stub.GetServerInfo(_proto.GetServerInfoRequest())))

    def model(self):
        """The model's state, step, weight version, lineage, sizes."""
        reply = self._retrying(lambda: self._stub.GetModel(_proto.GetModelRequest()))
        self._saw(reply.lineage, reply.step)
        return _proto.to_dict(reply)

    def requests(self):
        """The requests that the server remembers, oldest first."""
        reply = self._retrying(lambda: self._stub.ListRequests(_proto.ListRequestsRequest()))
        return _proto.to_dict(reply)["requests"]

    def attach(self, request_id, log_probs=False):
        """A Future of a request that was sent before, by this process or another."""
        status = self._get_request(request_id, 0)
        if _proto.to_dict(status)["state"] != "ROLLED_BACK":
            self._saw(status.lineage)
        return Future(self, status, log_probs)

    # --------------------------------------------------------------------------------------------------------- helpers

    def _update_header(self, loss, adam, old, ref, mini_batch, epochs, shuffle, seed, request_id, expected_step, schedule,
                       on_nonfinite, return_log_probs, num_groups):
        fields = {
            "request": {"request_id": request_id or _new_id(), "expected_step": expected_step, "schedule": schedule,
                        "on_nonfinite": on_nonfinite},
            "loss": _as_dict("loss", loss), "adam": _as_dict("adam", adam),
            "old": config.source(old) if old is not None else None,
            "ref": config.source(ref) if ref is not None else None,
            "num_groups": num_groups, "ppo_mini_batch_size": mini_batch, "ppo_epochs": epochs if epochs != 1 else None,
            "shuffle": shuffle, "seed": seed, "return_log_probs": return_log_probs}
        fields["request"] = _without_none(fields["request"])
        return config.fill_message(_proto.UpdateHeader(), _without_none(fields))

    def _get_request(self, request_id, wait_ms):
        request = _proto.GetRequestRequest(request_id=request_id, wait_ms=wait_ms)
        return self._retrying(lambda: self._stub.GetRequest(request))

    def _cancel(self, request_id):
        request = _proto.CancelRequestRequest(request_id=request_id)
        return self._retrying(lambda: self._stub.CancelRequest(request))

    def _retrying(self, call):
        """The call's answer; UNAVAILABLE is tried again, the same messages and so the same request_id."""
        for attempt in range(self._retries + 1):
            try:
                return call()
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or attempt == self._retries:
                    raise self._explained(errors.from_rpc_error(error)) from None
            time.sleep(min(_RETRY_DELAY_MAX_S, self._retry_delay_s * 2**attempt))
        raise AssertionError("the loop returns or raises")

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

    def _check_same_server(self, request_id, lineage):
        """For a request that the server does not know: raises LineageLostError if it is another life of the server."""
        now = self._retrying(lambda: self._stub.GetModel(_proto.GetModelRequest()))
        if lineage and now.lineage != lineage:
            raise self._explained(errors.LineageLostError(
                "ABORTED", "LINEAGE_MISMATCH", f"request {request_id} trained lineage {lineage}, which the server does not "
                f"have any more (was it started again?); the model is at step {now.step} of lineage {now.lineage}",
                metadata={"lineage": now.lineage, "step": str(now.step), "lost_lineage": lineage}))


class Future:
    """A request under way."""

    def __init__(self, client, status, return_log_probs):
        self._client, self._status, self._return_log_probs = client, status, return_log_probs
        self.request_id = status.request_id

    @property
    def status(self):
        """The state as last heard: state, steps_applied, steps_total, queue_position, ... as a dict."""
        return _proto.to_dict(self._status)

    def done(self):
        """Asks the server, without waiting."""
        if self.status["state"] not in _FINAL:
            self._poll(0)
        return self.status["state"] in _FINAL

    def cancel(self):
        """Ends the request between two optimizer steps; a step that was committed stays. True if it was in time."""
        self._status = self._client._cancel(self.request_id)
        return self.status["state"] == "CANCELLED"

    def result(self, timeout_s=None):
        """The UpdateResult. Raises StemmaError when the request failed or was cancelled, TimeoutError when it is not
        final in time (it goes on; ask again)."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.status["state"] not in _FINAL:
            left_ms = _POLL_MS if deadline is None else int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                raise TimeoutError(f"request {self.request_id} is {self.status['state']}")
            self._poll(min(_POLL_MS, left_ms))
        return self._outcome()

    def _poll(self, wait_ms):
        try:
            self._status = self._client._get_request(self.request_id, wait_ms)
        except errors.StemmaError as error:
            if error.reason == "NOT_FOUND":
                self._client._check_same_server(self.request_id, self._status.lineage)
            raise

    def _outcome(self):
        if self._status.HasField("failure"):
            raise errors.from_failure(self._status.failure)
        if not self._status.HasField("result"):
            raise errors.StemmaError("CANCELLED", "CANCELLED", f"request {self.request_id} was cancelled after "
                                     f"{self._status.steps_applied} of {self._status.steps_total} steps")
        result = results.update_result(self._status)
        for step in result.steps[-1:]:
            self._client._saw(self._status.lineage, step.step)
        if self._return_log_probs:
            result.log_probs = self._client.read_log_probs(self.request_id)
        return result


def _as_dict(name, value):
    if value is None:
        raise ValueError(f"{name} is required, e.g. loss=stemma.grpo(), adam=stemma.adamw(1e-6)")
    return _without_none(value) if isinstance(value, dict) else value.as_dict()


def _without_none(fields):
    return {k: v for k, v in fields.items() if v is not None}


def _new_id():
    return f"py-{uuid.uuid4()}"
