"""The client against a server in this process: what it sends, retries, decodes."""

import os
import pathlib
import struct
import subprocess
import sys

import grpc
import pytest
import stemma
from stemma import _proto

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from fake_server import FakeServer, abort, verified  # noqa: E402

GROUPS = [stemma.Group("g0", [5, 6, 7], [stemma.Rollout([8, 9], reward=1.0), stemma.Rollout([8], reward=0.0)])]
Status = _proto.message_class("stemma.v1.RequestStatus")
STATES = _proto.POOL.FindEnumTypeByName("stemma.v1.RequestState").values_by_name


def status(request_id, state, **fields):
    return Status(request_id=request_id, state=STATES[state].number, **fields)


def finished(request_id):
    out = status(request_id, "DONE", steps_applied=1, steps_total=1)
    step = out.result.steps.add(step=1, weight_version=2, attempts=1, outcome=1)
    step.metrics["actor/loss"] = 0.5
    out.result.metrics["actor/loss"] = 0.5
    out.result.effective.loss.clip_ratio_low = 0.2
    return out


def client_of(server, **options):
    return stemma.Client(server.address, retry_delay_s=0.0, **options)


def run(handlers, call, **options):
    with FakeServer(handlers) as server, client_of(server, **options) as client:
        return call(client)


def update(client, **options):
    return client.update_actor(GROUPS, loss=stemma.grpo(), adam=stemma.adamw(1e-6), **options)


def test_an_update_is_sent_accepted_and_waited_for():
    sent, polls = [], []

    def update_actor(parts, _):
        sent.extend(parts)
        return status(sent[0].update.request.request_id, "ACCEPTED", steps_total=1)

    def get_request(request, _):
        polls.append(request)
        return finished(request.request_id) if len(polls) > 1 else status(request.request_id, "PREPARING")

    result = run({"UpdateActor": update_actor, "GetRequest": get_request},
                 lambda c: update(c, mini_batch=2, epochs=3, shuffle=True, seed=4, expected_step=0, schedule="reuse"))
    header = sent[0].update
    assert header.request.wait_ms == 0 and header.request.HasField("wait_ms")
    assert header.request.expected_step == 0 and header.request.HasField("expected_step")
    assert _proto.to_dict(header)["request"]["schedule"] == "REUSE"
    assert (header.ppo_mini_batch_size, header.ppo_epochs, header.shuffle, header.seed, header.num_groups) == (2, 3, True, 4, 1)
    assert [p.WhichOneof("part") for p in sent] == ["update", "group", "end"]
    assert result.steps[0].outcome == "APPLIED" and result.steps[0].metrics == {"actor/loss": 0.5}
    assert result.metrics["actor/loss"] == 0.5 and result.effective["loss"]["clip_ratio_low"] == 0.2
    assert result.request_id == header.request.request_id == polls[0].request_id and len(polls) == 2


def test_unavailable_is_retried_with_the_same_id_and_payload():
    calls = []

    def update_actor(parts, context):
        calls.append([p.SerializeToString(deterministic=True) for p in parts])
        if len(calls) < 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        return finished(_proto.GroupPart.FromString(calls[0][0]).update.request.request_id)

    run({"UpdateActor": update_actor}, update)
    assert len(calls) == 3 and calls[0] == calls[1] == calls[2]


def test_two_requests_have_different_ids():
    ids = []

    def update_actor(parts, _):
        ids.append(list(parts)[0].update.request.request_id)
        return finished(ids[-1])

    run({"UpdateActor": update_actor}, lambda c: (update(c), update(c)))
    assert len(set(ids)) == 2


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED, grpc.StatusCode.INTERNAL,
                                  grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_nothing_else_is_retried(code):
    calls = []

    def update_actor(parts, context):
        calls.append(list(parts))
        context.abort(code, "no")

    with pytest.raises(stemma.StemmaError) as error:
        run({"UpdateActor": update_actor}, update)
    assert len(calls) == 1 and error.value.code == code.name and error.value.message == "no"


def test_retries_end():
    calls = []

    def model(_, context):
        calls.append(1)
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    with pytest.raises(stemma.StemmaError, match="UNAVAILABLE"):
        run({"GetModel": model}, lambda c: c.model(), retries=2)
    assert len(calls) == 3


def test_an_error_carries_reason_fields_uid_and_metadata():
    def update_actor(parts, context):
        list(parts)
        abort(context, grpc.StatusCode.INVALID_ARGUMENT, "2 problems", "INVALID_REQUEST",
              [("groups[0].rollouts[1].response_tokens[0]", "token 99 is not below the vocabulary of 16"),
               ("loss.temperature", "is required")], {"uid": "g0"})

    with pytest.raises(stemma.StemmaError) as error:
        run({"UpdateActor": update_actor}, update)
    assert error.value.code == "INVALID_ARGUMENT" and error.value.reason == "INVALID_REQUEST"
    assert error.value.uid == "g0" and error.value.fields[1] == ("loss.temperature", "is required")
    assert "groups[0].rollouts[1].tokens[0]: token 99" in str(error.value)


def test_the_servers_advice_to_wait_is_passed_on():
    def update_actor(parts, context):
        list(parts)
        abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", retry_delay_s=3.25)

    with pytest.raises(stemma.StemmaError) as error:
        run({"UpdateActor": update_actor}, update)
    assert error.value.reason == "QUEUE_FULL" and error.value.retry_after_s == 3.25


def test_a_request_that_failed_later_raises_its_failure():
    def get_request(request, _):
        out = status(request.request_id, "FAILED")
        out.failure.code, out.failure.reason, out.failure.message = 9, "NONFINITE_GRADIENT", "wave 3"
        return out

    handlers = {"UpdateActor": lambda parts, _: status(list(parts)[0].update.request.request_id, "ACCEPTED"),
                "GetRequest": get_request}
    with pytest.raises(stemma.StemmaError) as error:
        run(handlers, update)
    assert error.value.code == "FAILED_PRECONDITION" and error.value.reason == "NONFINITE_GRADIENT"


def test_a_future_can_be_asked_cancelled_and_timed_out():
    cancelled = []
    handlers = {"UpdateActor": lambda parts, _: status(list(parts)[0].update.request.request_id, "ACCEPTED"),
                "GetRequest": lambda request, _: status(request.request_id, "PREPARING"),
                "CancelRequest": lambda request, _: cancelled.append(1) or status(request.request_id, "CANCELLED")}

    def call(client):
        future = update(client, wait=False)
        assert not future.done() and future.status["state"] == "PREPARING"
        with pytest.raises(TimeoutError):
            future.result(timeout_s=0.0)
        assert future.cancel() and future.done()
        with pytest.raises(stemma.StemmaError, match="CANCELLED"):
            future.result()

    run(handlers, call)
    assert cancelled


def results_stream(*_):
    message = _proto.message_class("stemma.v1.GroupResult")
    yield message(uid="g0", dtype=1, rollouts=[{"rollout_id": "g0/0", "log_probs": struct.pack("<2f", -0.5, -0.25)}])
    yield message(uid="g0", dtype=2, rollouts=[{"rollout_id": "g0/1", "log_probs": struct.pack("<d", -0.1),
                                                "entropy": struct.pack("<d", 1.5)}])


def test_log_probs_come_back_by_rollout_in_the_dtype_of_the_run():
    headers = []

    def compute(parts, context):
        headers.append(list(parts)[0].log_prob)
        yield from results_stream()

    out = run({"ComputeLogProb": compute}, lambda c: c.log_probs(GROUPS, temperature=0.5, entropy=True))
    assert (headers[0].weights, headers[0].temperature, headers[0].entropy) == ("policy", 0.5, True)
    assert list(out["g0/0"].log_probs) == [-0.5, -0.25]
    assert list(out["g0/1"].log_probs) == [-0.1] and list(out["g0/1"].entropy) == [1.5]


def test_a_checkpoint_has_one_name_for_log_probs_and_for_old_and_ref():
    names = []

    def compute(parts, _):
        names.append(list(parts)[0].log_prob.weights)
        return iter(())

    def call(client):
        for weights in ("start", "checkpoint:start", "policy", "checkpoint:"):
            client.log_probs(GROUPS, weights=weights)
        with pytest.raises(ValueError, match="weights is 5: pass a string"):
            client.log_probs(GROUPS, weights=5)

    run({"ComputeLogProb": compute}, call)
    assert names == ["start", "start", "policy", "checkpoint:"]


def test_an_update_returns_log_probs_when_asked():
    handlers = {"UpdateActor": lambda parts, _: finished(list(parts)[0].update.request.request_id),
                "ReadResults": results_stream}
    assert run(handlers, update).log_probs is None
    assert list(run(handlers, lambda c: update(c, return_log_probs=True)).log_probs["g0/0"].log_probs) == [-0.5, -0.25]


def test_a_plan_asks_for_validation_only():
    headers = []

    def update_actor(parts, _):
        headers.append(list(parts)[0].update)
        out = status("", "DONE")
        out.plan.num_steps = 7
        return out

    plan = run({"UpdateActor": update_actor}, lambda c: c.plan(GROUPS, stemma.grpo(), stemma.adamw(1e-6)))
    assert headers[0].request.validate_only and plan["num_steps"] == 7


def test_requests_that_were_sent_are_recorded_and_refused_ones_are_not(tmp_path):
    def update_actor(parts, context):
        if list(parts)[0].update.request.request_id == "bad":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        return finished("x")

    def call(client):
        update(client)
        with pytest.raises(stemma.StemmaError):
            update(client, request_id="bad")

    with stemma.trace.TraceWriter(tmp_path / "t.jsonl") as recorder:
        run({"UpdateActor": update_actor}, call, recorder=recorder)
    assert len(list(stemma.trace.read(tmp_path / "t.jsonl"))) == 1


def test_loss_and_optimizer_are_required():
    with pytest.raises(ValueError, match="adam is required"):
        stemma.Client("127.0.0.1:1").update_actor(GROUPS, loss=stemma.grpo())


def test_small_calls_return_plain_data():
    model = _proto.message_class("stemma.v1.ModelInfo")(state=2, step=3, lineage="abc")
    export = _proto.message_class("stemma.v1.ExportWeightsResponse")(path="/data/exports/a")
    seen = []
    handlers = {"GetModel": lambda *_: model, "ExportWeights": lambda request, _: seen.append(request) or export}
    out = run(handlers, lambda c: (c.model(), c.export("a", dtype="float64")))
    assert out[0]["state"] == "IDLE" and out[0]["step"] == 3 and out[1] == "/data/exports/a"
    assert (seen[0].name, seen[0].dtype) == ("a", "float64")


class Lineages:
    """A server of one lineage at a time that refuses what expects another."""

    def __init__(self, lineage):
        self.lineage, self.step, self.expected = lineage, 0, []

    def handlers(self):
        return {"UpdateActor": self.update_actor, "ExportWeights": self.export, "GetModel": self.model,
                "ComputeLogProb": self.log_probs, "VerifyGroup": self.verify}

    def check(self, request, context):
        self.expected.append(request.expected_lineage if request.HasField("expected_lineage") else None)
        if self.expected[-1] not in (None, self.lineage):
            abort(context, grpc.StatusCode.ABORTED, "another lineage", "LINEAGE_MISMATCH",
                  metadata={"lineage": self.lineage, "step": str(self.step), "expected_lineage": self.expected[-1]})

    def update_actor(self, parts, context):
        header = list(parts)[0].update.request
        self.check(header, context)
        self.step += 1
        out = finished(header.request_id)
        out.lineage = out.result.lineage = self.lineage
        out.result.steps[0].step = self.step
        return out

    def log_probs(self, parts, context):
        self.check(list(parts)[0].log_prob.request, context)
        for message in results_stream():
            message.lineage = self.lineage
            yield message

    def verify(self, parts, context):
        self.check(list(parts)[0].update.request, context)
        return verified(step=self.step, lineage=self.lineage)

    def export(self, request, context):
        self.check(request, context)
        return _proto.message_class("stemma.v1.ExportWeightsResponse")(path="/x", step=self.step, lineage=self.lineage)

    def model(self, *_):
        return _proto.message_class("stemma.v1.ModelInfo")(state=2, step=self.step, lineage=self.lineage)


def test_a_client_expects_the_lineage_that_it_heard_of_first():
    verify = lambda c: c.verify(GROUPS, stemma.grpo(), stemma.adamw(1e-6))
    for first in (update, verify, lambda c: c.log_probs(GROUPS), lambda c: c.export("a"), lambda c: c.model()):
        server = Lineages("a-1")

        def call(client):
            assert client.lineage is None
            first(client)
            assert client.lineage == "a-1"
            for again in (update, verify, lambda c: c.log_probs(GROUPS), lambda c: c.export("a")):
                again(client)
            server.lineage, server.step = "b-1", 0
            for again in (update, verify, lambda c: c.log_probs(GROUPS), lambda c: c.export("a")):
                with pytest.raises(stemma.LineageLostError) as error:
                    again(client)
                assert (error.value.lost_lineage, error.value.lineage, error.value.step) == ("a-1", "b-1", 0)
                assert error.value.lost_step >= 1 and "saw steps up to" in str(error.value)
            assert client.model()["lineage"] == "b-1" and client.lineage == "a-1"

        run(server.handlers(), call)
        assert server.expected[-8:] == ["a-1"] * 8 and server.step == 0


def test_a_client_that_follows_expects_nothing_and_moves_on():
    server = Lineages("a-1")

    def call(client):
        update(client)
        assert client.lineage == "a-1"
        server.lineage = "b-1"
        assert update(client).lineage == "b-1" == client.lineage

    run(server.handlers(), call, follow_lineage=True)
    assert server.expected == [None, None]


def test_a_server_without_lineages_is_held_to_none():
    run({"UpdateActor": lambda parts, _: finished(list(parts)[0].update.request.request_id)},
        lambda c: (update(c), update(c)))


def test_a_recorded_request_expects_no_lineage(tmp_path):
    with stemma.trace.TraceWriter(tmp_path / "t.jsonl") as recorder:
        run(Lineages("a-1").handlers(), lambda c: (update(c), update(c)), recorder=recorder)
    assert "lineage" not in (tmp_path / "t.jsonl").read_text()


def test_a_client_beside_one_that_a_fork_brought_is_refused_where_grpc_would_wait_for_ever(monkeypatch):
    from stemma import _connection

    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    for version in ("1.51.0", "1.79.3"):
        monkeypatch.setattr(grpc, "__version__", version)
        stemma.Client("127.0.0.1:7070").close()
        monkeypatch.setattr(_connection, "_forked_beside", True)
        with pytest.raises(ValueError, match=f"would wait for ever: grpcio is {version}. .*spawn.*grpcio 1.80 or newer"):
            stemma.Client("127.0.0.1:7070")
        with monkeypatch.context() as told:
            told.setenv("GRPC_ENABLE_FORK_SUPPORT", "yes")
            stemma.Client("127.0.0.1:7070").close()
        monkeypatch.setattr(_connection, "_forked_beside", False)
    monkeypatch.setattr(_connection, "_forked_beside", True)
    monkeypatch.setattr(grpc, "__version__", "1.80.1")
    stemma.Client("127.0.0.1:7070").close()


FORKED = """
import os, sys, stemma
from stemma import _connection
client = stemma.Client("127.0.0.1:1", connect_timeout_s=0.05)
if sys.argv[1] == "used":
    try:
        client.model()
    except stemma.StemmaError:
        pass
if sys.argv[2] == "closed":
    client.close()
child = os.fork()
if child == 0:
    client.close()  # the other's: it stays open there
    del client
    os._exit(int(_connection._forked_beside))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(_connection._forked_beside))
"""


@pytest.mark.parametrize("used, state, seen", [("used", "open", 1), ("unused", "open", 0), ("used", "closed", 0)])
def test_a_forked_process_remembers_whether_a_client_was_in_use(used, state, seen):
    out = subprocess.run([sys.executable, "-c", FORKED, used, state], capture_output=True, text=True, timeout=60, check=True,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert out.stdout.split() == [str(seen), "0"], out.stderr
