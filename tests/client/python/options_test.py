"""What a Client takes when it is made, and how long its calls wait where they are told to."""

import math
import threading
import time

import grpc
import numpy
import pytest
import stemma

from checkpoint_test import Checkpoint, Listed, Model
from client_test import GROUPS, run, update
from fake_server import FakeServer, abort
from waiting_test import ACCEPTED, unavailable


# Timeouts.

CALLS = {
    "GetModel": lambda c, **o: c.model(**o), "GetServerInfo": lambda c, **o: c.info(**o),
    "ComputeLogProb": lambda c, **o: c.log_probs(GROUPS, **o),
    "UpdateActor": lambda c, **o: c.plan(GROUPS, stemma.grpo(), stemma.adamw(1e-6), **o),
    "ExportWeights": lambda c, **o: c.export("a", **o), "SaveCheckpoint": lambda c, **o: c.save_checkpoint("a", **o),
    "LoadCheckpoint": lambda c, **o: c.load_checkpoint("a", **o)}
GOES_ON = {"ExportWeights": "export 'a', which may go on at the server", "LoadCheckpoint": "the load of checkpoint 'a', which may",
           "SaveCheckpoint": "the save of a checkpoint 'a', which may go on at the server"}


@pytest.mark.parametrize("method", CALLS)
def test_a_call_ends_by_its_timeout_where_the_server_recovers_or_stands_still(method):
    stands, begin = threading.Event(), time.monotonic()
    for handler in (unavailable("RECOVERING"), lambda *_: stands.wait(30)):
        with FakeServer({method: handler}) as server, stemma.Client(server.address, recovery_timeout_s=30) as client:
            with pytest.raises(TimeoutError, match=f"^there was no answer in 0.2 s to .*{GOES_ON.get(method, '')}"):
                CALLS[method](client, timeout_s=0.2)
            stands.set()
        stands.clear()
    assert time.monotonic() - begin < 20  # 0.2 s each, and a second for an answer


@pytest.mark.parametrize("method", CALLS)
def test_a_call_without_a_timeout_has_no_deadline_and_one_that_is_no_time_is_refused(method):
    left = []

    def note(_, context):
        left.append(context.time_remaining())
        abort(context, grpc.StatusCode.INVALID_ARGUMENT, "no", "INVALID_REQUEST")

    with FakeServer({method: note}) as server, stemma.Client(server.address) as client:
        for options in ({}, {"timeout_s": None}, {"timeout_s": 100}):
            with pytest.raises(stemma.StemmaError, match="INVALID_REQUEST"):  # an answer is no timeout
                CALLS[method](client, **options)
        with pytest.raises(ValueError, match="timeout_s is '5'"):
            CALLS[method](client, timeout_s="5")
    assert [seconds is None or seconds > 1e6 for seconds in left] == [True, True, False] and 90 < left[2] < 102


@pytest.mark.parametrize("method, exists", [("ExportWeights", "EXPORT_EXISTS"), ("SaveCheckpoint", "CHECKPOINT_EXISTS")])
def test_what_is_still_written_when_the_time_is_over_is_a_timeout(method, exists):
    """A clash of names would send the caller to another name, and both would be written."""
    tries = []

    def lose_once(_, context):
        tries.append(1)
        if len(tries) == 1:
            abort(context, grpc.StatusCode.UNAVAILABLE, "gone")
        abort(context, grpc.StatusCode.ALREADY_EXISTS, "there", exists, metadata={"path": "/a", "pending": "true"})

    handlers = {method: lose_once, "GetModel": lambda *_: Model(lineage="L1", step=3),
                "ListCheckpoints": lambda *_: Listed(checkpoints=[Checkpoint(name="b")])}
    with pytest.raises(TimeoutError, match="which may go on at the server"):
        run(handlers, lambda c: CALLS[method](c, timeout_s=0.3), recovery_timeout_s=5)
