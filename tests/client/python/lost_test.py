"""Calls that are repeated where their answer was lost: what a try has done, it is found to have done; a try that had no connection
has done nothing."""

import threading
import time

import grpc
import pytest
import stemma
from stemma import _proto

from checkpoint_test import Checkpoint, Deleted, Listed, Model
from export_test import MINE, Written
from fake_server import FakeServer, abort

AWAY_S = 0.4
CODE_OF = {"NOT_FOUND": grpc.StatusCode.NOT_FOUND}


def refusing(reason, metadata=None):
    def refuse(_, context):
        abort(context, CODE_OF.get(reason, grpc.StatusCode.ALREADY_EXISTS), "as it stands", reason, metadata=metadata)
    return refuse


# What looks like the work of a lost try, and what the server answers to another one.
THERE = {"GetModel": lambda *_: Model(lineage="L1", step=3, weight_version=4),
         "ListCheckpoints": lambda *_: Listed(checkpoints=[Checkpoint(name="a", lineage="L1", step=3)]),
         "DeleteCheckpoint": refusing("NOT_FOUND"), "SaveCheckpoint": refusing("CHECKPOINT_EXISTS", {"name": "a"}),
         "ExportWeights": refusing("EXPORT_EXISTS", MINE)}
CALLS = {"NOT_FOUND": lambda c: c.delete_checkpoint("a"), "CHECKPOINT_EXISTS": lambda c: c.save_checkpoint("a"),
         "EXPORT_EXISTS": lambda c: c.export("a")}


def wait_until_nobody_listens(client):
    while True:
        try:
            client._stub.GetModel(_proto.GetModelRequest())
        except grpc.RpcError as error:
            if "failed to connect" in error.details():
                return
        time.sleep(0.01)


@pytest.mark.parametrize("reason", CALLS)
def test_a_try_that_no_connection_carried_has_done_nothing(reason):
    """A misspelled name, asked for while the server is started again."""
    with FakeServer(THERE) as first:
        client = stemma.Client(first.address, retry_delay_s=0.05)
        client.model()
    wait_until_nobody_listens(client)
    again = FakeServer(THERE, first.port)
    timer = threading.Timer(AWAY_S, again.__enter__)
    timer.start()
    try:
        with client, pytest.raises(stemma.StemmaError, match=reason):
            CALLS[reason](client)
    finally:
        timer.join()
        again.__exit__()


@pytest.mark.parametrize("refusal", ["STARTING", "RECOVERING"])
@pytest.mark.parametrize("reason", CALLS)
def test_a_server_that_loads_has_done_nothing(reason, refusal):
    asked = []

    def refuse_once(request, context):
        asked.append(request)
        if len(asked) == 1:
            abort(context, grpc.StatusCode.UNAVAILABLE, "not now", refusal)
        return refusing(reason, MINE if reason == "EXPORT_EXISTS" else None)(request, context)

    names = {"NOT_FOUND": "DeleteCheckpoint", "CHECKPOINT_EXISTS": "SaveCheckpoint", "EXPORT_EXISTS": "ExportWeights"}
    with FakeServer({**THERE, names[reason]: refuse_once}) as server:
        with stemma.Client(server.address, retry_delay_s=0.01) as client:
            with pytest.raises(stemma.StemmaError, match=reason):
                CALLS[reason](client)
    assert len(asked) == 2


@pytest.mark.parametrize("text, is_lost", [
    ("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused", False),
    ("DNS resolution failed for host:7070: C-ares status is not ARES_SUCCESS", False),
    ("errors resolving host:7070: [field:hostname lookup error]", False),
    ("Socket closed", True), ("recvmsg:Connection reset by peer", True), ("", True), (None, True), ("GOAWAY received", True)])
def test_what_grpc_says_tells_whether_a_connection_carried_the_call(text, is_lost):
    class Lost(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.UNAVAILABLE

        def details(self):
            return text

        def trailing_metadata(self):
            return ()

    def call():
        raise Lost

    lost = []
    with stemma.Client("127.0.0.1:1") as client, pytest.raises(Lost):
        client._noting_loss(call, lost)
    assert bool(lost) is is_lost


def test_a_call_whose_answer_is_lost_is_asked_for_once_more_and_its_own():
    """The control: with a connection that breaks the same answers are taken for the try's own work."""
    asked = []

    def lose_once(method):
        def answer(request, context):
            asked.append(method)
            if asked.count(method) == 1:
                abort(context, grpc.StatusCode.UNAVAILABLE, "Socket closed")
            return THERE[method](request, context)
        return answer

    handlers = {**THERE, **{method: lose_once(method) for method in ("DeleteCheckpoint", "SaveCheckpoint", "ExportWeights")}}
    with FakeServer(handlers) as server, stemma.Client(server.address, retry_delay_s=0.01) as client:
        assert client.delete_checkpoint("a") is None and client.save_checkpoint("a").name == "a"
        assert client.export("a") == MINE["path"]
    with FakeServer({"DeleteCheckpoint": lambda *_: Deleted(), "ExportWeights": lambda *_: Written(path="/x")}) as server:
        with stemma.Client(server.address) as client:
            assert client.delete_checkpoint("a") is None and client.export("a") == "/x"
