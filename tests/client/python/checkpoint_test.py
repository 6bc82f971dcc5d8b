"""The client's calls about checkpoints, against a server in this process."""

import pathlib
import sys

import grpc
import pytest
import stemma
from stemma import _checkpoint_calls, _proto

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from fake_server import FakeServer, abort  # noqa: E402

Checkpoint, Loaded, Listed, Model, Deleted = (_proto.message_class(f"stemma.v1.{name}") for name in (
    "Checkpoint", "LoadCheckpointResponse", "ListCheckpointsResponse", "ModelInfo", "DeleteCheckpointResponse"))


def saved_as(request, name=None, **fields):
    return Checkpoint(**{"name": name or request.name, "lineage": "L1", "step": 3, "pinned": request.pinned,
                         "client_state_bytes": len(request.client_state), **fields})


def client_of(server):
    return stemma.Client(server.address, retry_delay_s=0.01, recovery_timeout_s=2)


def run(handlers, call):
    with FakeServer(handlers) as server, client_of(server) as client:
        return call(client)


class Losing:
    """A server that refuses the first save with `reason`, and then knows `checkpoints`, from the list `listed_after` on, and the
    name that is asked for. It gives a save without a name the next one that is free."""

    def __init__(self, checkpoints, reason="", listed_after=0):
        self.saves, self.lists = [], 0
        self._checkpoints, self._reason, self._listed_after = checkpoints, reason, listed_after

    def handlers(self):
        return {"SaveCheckpoint": self._save, "ListCheckpoints": self._list, "GetModel": lambda *_: Model(lineage="L1", step=3)}

    def _list(self, *_):
        self.lists += 1
        return Listed(checkpoints=self._checkpoints if self.lists > self._listed_after else [])

    def _save(self, request, context):
        self.saves.append(request)
        if len(self.saves) == 1:
            abort(context, grpc.StatusCode.UNAVAILABLE, "gone", self._reason)
        if not request.name:
            return saved_as(request, name="step-00000003-2")
        abort(context, grpc.StatusCode.ALREADY_EXISTS, "there", "CHECKPOINT_EXISTS", metadata={"name": "step-00000003"})


def test_a_save_sends_what_was_asked_for_and_pins_its_lineage():
    sent = []

    def save(request, _):
        sent.append(request)
        return saved_as(request, weights_digest="ab", bytes=7)

    def call(client):
        first = client.save_checkpoint("a", pinned=True, client_state=b"\0x")
        client.save_checkpoint()
        return first, client.lineage

    first, lineage = run({"SaveCheckpoint": save}, call)
    assert (first.name, first.lineage, first.step, first.weights_digest, first.bytes) == ("a", "L1", 3, "ab", 7)
    assert (sent[0].name, sent[0].pinned, sent[0].client_state) == ("a", True, b"\0x")
    assert not sent[0].HasField("expected_lineage")
    assert (sent[1].name, sent[1].pinned, sent[1].client_state, sent[1].expected_lineage) == ("", False, b"", "L1")
    assert lineage == "L1"


@pytest.mark.parametrize("state, says", [("text", "is a str: pass bytes"), (bytearray(b"x"), "is a bytearray"), (None, "is a NoneType"),
                                         (b"x" * ((1 << 20) + 1), "has 1048577 bytes, at most 1048576")])
def test_a_state_that_cannot_be_sent_is_refused_before_it_is(state, says):
    sent = []
    with pytest.raises(ValueError, match=f"client_state {says}"):
        run({"SaveCheckpoint": lambda request, _: sent.append(request)}, lambda c: c.save_checkpoint(client_state=state))
    assert not sent


def test_a_state_of_the_largest_size_is_sent():
    out = run({"SaveCheckpoint": lambda request, _: saved_as(request, name="a")},
              lambda c: c.save_checkpoint(client_state=b"x" * (1 << 20)))
    assert out.client_state_bytes == 1 << 20


@pytest.mark.parametrize("call", [lambda c: c.save_checkpoint("x", pinned="no"), lambda c: c.pin_checkpoint("x", pinned="no"),
                                  lambda c: c.pin_checkpoint("x", pinned=None), lambda c: c.save_checkpoint("x", pinned=1)])
def test_a_pin_that_is_neither_true_nor_false_is_refused_before_it_is_sent(call):
    with pytest.raises(ValueError, match=r"^pinned is ('no'|None|1): pass True or False$"):
        run({}, call)


@pytest.mark.parametrize("name, tries", [("a", 2), (None, 1)])
def test_a_save_whose_answer_was_lost_is_found(name, tries):
    there = Checkpoint(name=name or "step-00000003", lineage="L1", step=3, client_state_bytes=2)
    server = Losing([Checkpoint(name="b", lineage="L1", step=3, client_state_bytes=2), there])
    out, lineage = run(server.handlers(), lambda c: (c.save_checkpoint(name, client_state=b"xy"), c.lineage))
    assert out.name == there.name and len(server.saves) == tries
    assert lineage == "L1", "which the client is held to from now on"


def test_a_save_that_is_still_written_when_it_is_repeated_is_waited_for():
    server = Losing([Checkpoint(name="a", lineage="L1", step=3)], listed_after=4)
    assert run(server.handlers(), lambda c: c.save_checkpoint("a")).name == "a"
    assert len(server.saves) > 2


@pytest.mark.parametrize("other", [{"name": "step-00000004"}, {"name": "mine"}, {"step": 2}, {"lineage": "L0"}, {"pinned": True}])
def test_a_save_without_a_name_takes_no_other_for_its_own(other):
    there = Checkpoint(**{"name": "step-00000003", "lineage": "L1", "step": 3, **other})
    server = Losing([there])
    assert run(server.handlers(), lambda c: c.save_checkpoint()).name == "step-00000003-2"
    assert len(server.saves) == 2


@pytest.mark.parametrize("other", [{"lineage": "L0"}, {"step": 2}, {"pinned": True}, {"client_state_bytes": 1},
                                   {"name": "b"}, {"damage": "a file is missing"}])
def test_another_checkpoint_of_the_name_is_no_answer(other):
    there = Checkpoint(**{"name": "a", "lineage": "L1", "step": 3, **other})
    server = Losing([there])
    with pytest.raises(stemma.StemmaError) as error:
        run(server.handlers(), lambda c: c.save_checkpoint("a"))
    assert error.value.reason == "CHECKPOINT_EXISTS"
    assert len(server.saves) == 2 or "name" in other, "what is there already is not waited for"


@pytest.mark.parametrize("reason", ["STARTING", "RECOVERING"])
def test_a_server_that_loaded_has_saved_nothing(reason):
    server = Losing([Checkpoint(name="a", lineage="L1", step=3)], reason=reason)
    with pytest.raises(stemma.StemmaError) as error:
        run(server.handlers(), lambda c: c.save_checkpoint("a"))
    assert error.value.reason == "CHECKPOINT_EXISTS" and len(server.saves) == 2


def test_a_load_gives_the_state_back_and_moves_the_client_to_its_lineage():
    sent = []

    def load(request, _):
        sent.append(request)
        return Loaded(checkpoint=Checkpoint(name="a", step=3), client_state=b"\0p", lineage="L2", step=3, weight_version=4)

    def call(client):
        client.model()
        return client.load_checkpoint("a"), client.load_checkpoint(), client.lineage

    first, _, lineage = run({"GetModel": lambda *_: Model(lineage="L1", step=9), "LoadCheckpoint": load}, call)
    assert (first.checkpoint.name, first.client_state, first.lineage, first.step, first.weight_version) == (
        "a", b"\0p", "L2", 3, 4)
    assert [(r.name, r.expected_lineage) for r in sent] == [("a", "L1"), ("", "L2")] and lineage == "L2"


@pytest.mark.parametrize("untold_s, lines", [(60.0, 0), (0.0, 1)])
def test_workers_that_load_what_this_client_asked_for_are_news_only_after_a_while(untold_s, lines, monkeypatch, caplog):
    monkeypatch.setattr(_checkpoint_calls, "_LOAD_UNTOLD_S", untold_s)
    tries = []

    def loads(_, context):
        tries.append(context)
        if len(tries) < 4:
            abort(context, grpc.StatusCode.UNAVAILABLE, "a worker was lost, or a checkpoint is loaded", "RECOVERING")
        return Checkpoint(name="b")

    run({"LoadCheckpoint": lambda *_: Loaded(lineage="L2", step=3), "SaveCheckpoint": loads},
        lambda client: (client.load_checkpoint("a"), client.save_checkpoint("b")))
    assert len(tries) == 4 and sum(record.name == "stemma" for record in caplog.records) == lines


def test_the_other_calls_name_their_checkpoint():
    deleted = []

    def delete(request, _):
        deleted.append(request.name)
        return Deleted()

    handlers = {"ListCheckpoints": lambda *_: Listed(checkpoints=[Checkpoint(name="a"), Checkpoint(name="b")]),
                "VerifyCheckpoint": lambda request, _: Checkpoint(name=request.name, damage="bad"),
                "PinCheckpoint": lambda request, _: Checkpoint(name=request.name, pinned=request.pinned),
                "DeleteCheckpoint": delete}
    assert [c.name for c in run(handlers, lambda c: c.list_checkpoints())] == ["a", "b"]
    out = run(handlers, lambda c: c.verify_checkpoint("b"))
    assert (out.name, out.damage) == ("b", "bad")
    assert run(handlers, lambda c: (c.pin_checkpoint("b").pinned, c.pin_checkpoint("b", False).pinned)) == (True, False)
    assert run(handlers, lambda c: c.delete_checkpoint("a")) is None and deleted == ["a"]


def test_an_update_after_a_load_waits_until_workers_have_loaded():
    updates = []

    def update(parts, context):
        updates.append(list(parts)[0].update.request)
        if len(updates) < 10:  # more than there are retries
            abort(context, grpc.StatusCode.UNAVAILABLE, "loading", "RECOVERING")
        return _proto.message_class("stemma.v1.RequestStatus")(request_id=updates[0].request_id, lineage="L2")

    def call(client):
        client.load_checkpoint("a")
        group = stemma.Group("g", [5], [stemma.Rollout([8], reward=1.0)])
        return client.submit([group], loss=stemma.grpo(), adam=stemma.adamw(1e-6))

    run({"LoadCheckpoint": lambda *_: Loaded(lineage="L2", step=3), "UpdateActor": update}, call)
    assert len(updates) == 10 and {request.expected_lineage for request in updates} == {"L2"}
