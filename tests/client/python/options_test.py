"""What a Client takes when it is made, and how long its calls wait where they are told to."""

import gc
import inspect
import itertools
import math
import os
import signal
import threading
import time
import typing

import grpc
import numpy
import pytest
import stemma
from stemma import _tries

from checkpoint_test import Checkpoint, Listed, Model
from client_test import GROUPS, run, update
from fake_server import FakeServer, abort
from waiting_test import ACCEPTED, unavailable


@pytest.mark.parametrize("options, says", [
    ({"retries": None}, "retries is None: pass a whole number from 0 on"), ({"retries": "3"}, "retries is '3': pass a whole number"),
    ({"retries": -1}, "retries is -1: pass a whole number"), ({"retries": 2.0}, "retries is 2.0: pass a whole number"),
    ({"retries": True}, "retries is True: pass a whole number"),
    ({"connect_timeout_s": None}, "connect_timeout_s is None: pass seconds, a number from 0 on"),
    ({"connect_timeout_s": "1"}, "connect_timeout_s is '1': pass seconds"),
    ({"recovery_timeout_s": None}, "recovery_timeout_s is None: pass seconds"),
    ({"recovery_timeout_s": math.nan}, "recovery_timeout_s is nan: pass seconds"),
    ({"retry_delay_s": -0.1}, "retry_delay_s is -0.1: pass seconds"), ({"retry_delay_s": True}, "retry_delay_s is True: pass seconds"),
    ({"follow_lineage": "no"}, "follow_lineage is 'no': pass True or False"),
    ({"recorder": "trace.jsonl"}, r"recorder is 'trace.jsonl', which has no write_parts\(parts\): pass a stemma.trace.TraceWriter")])
def test_an_option_that_cannot_be_followed_is_refused_when_the_client_is_made(options, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        stemma.Client("127.0.0.1:1", **options)


def test_options_of_numpy_and_without_an_end_are_taken():
    options = dict(retries=numpy.int64(1), retry_delay_s=numpy.float32(0.01), connect_timeout_s=math.inf,
                   recovery_timeout_s=math.inf, follow_lineage=numpy.True_)
    with FakeServer({"GetModel": lambda *_: Model(lineage="L1")}) as server, stemma.Client(server.address, **options) as client:
        assert client.model()["lineage"] == "L1"


def test_times_of_numpy_are_pythons_own_to_which_a_clock_adds_exactly():
    """numpy.float16 ends at 65504, as a clock does after a day, and has no tenths of seconds long before."""
    uptime_s = 70_000.25
    for small in (numpy.float16(60), numpy.int8(60), 60):
        assert uptime_s + _tries.checked_s("recovery_timeout_s", small) == uptime_s + 60
        assert abs(_tries.left_s(_tries.deadline_of(small)) - 60) < 30
    assert _tries.checked_s("retry_delay_s", 10**400) == math.inf and _tries.deadline_of(10**400) is None


@pytest.mark.parametrize("error", [TypeError("write_parts() takes one argument"), RuntimeError("full"), KeyError("x"), OSError("disk")])
def test_whatever_a_recorder_raises_hides_no_accepted_request(error):
    class Recorder:
        def write_parts(self, parts):
            raise error

    with FakeServer(ACCEPTED) as server, stemma.Client(server.address, recorder=Recorder()) as client:
        with pytest.warns(RuntimeWarning, match=f"request r was accepted, and may not be recorded: the recorder raised {type(error).__name__}"):
            assert update(client, wait=False, request_id="r").request_id == "r"


def test_a_process_that_was_forked_off_is_told_to_make_its_own_client():
    """Both would write to one socket, and close() would wait for threads that a fork leaves behind."""
    with FakeServer({"GetModel": lambda *_: Model(lineage="L1")}) as server, stemma.Client(server.address) as client:
        assert client.model()["lineage"] == "L1"
        child = os.fork()
        if child == 0:
            try:
                gc.disable()  # what tests before have left of gRPC's objects is not to be collected where its threads are not
                signal.alarm(10)
                with client, pytest.raises(ValueError, match=f"^this client of .* is of process {os.getppid()}, .* make a stemma.Client"):
                    client.model()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert client.model()["lineage"] == "L1"


# Timeouts.

CALLS = {
    "GetModel": lambda c, **o: c.model(**o), "GetServerInfo": lambda c, **o: c.info(**o),
    "ComputeLogProb": lambda c, **o: c.log_probs(GROUPS, **o),
    "VerifyGroup": lambda c, **o: c.verify(GROUPS, stemma.grpo(), stemma.adamw(1e-6), **o),
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


@pytest.mark.parametrize("method", ["ComputeLogProb", "VerifyGroup", "ExportWeights", "SaveCheckpoint"])
@pytest.mark.parametrize("losses", [2, 3])
def test_a_call_in_which_workers_are_lost_is_made_three_times(method, losses):
    """Between two losses the server recovers, after which tries are counted anew: for ever, where the call is what ends workers."""
    answers = itertools.chain(*[("ATTEMPTS_EXHAUSTED", "RECOVERING")] * losses, itertools.repeat("INVALID_REQUEST"))
    told = []

    def answer(_, context):
        told.append(next(answers))
        abort(context, grpc.StatusCode.UNAVAILABLE if len(told) <= 2 * losses else grpc.StatusCode.INVALID_ARGUMENT,
              "the worker was lost", told[-1])

    with FakeServer({method: answer}) as server, stemma.Client(server.address, retry_delay_s=0.01) as client:
        with pytest.raises(stemma.StemmaError) as error:
            CALLS[method](client)
    assert error.value.reason == told[-1] == ("ATTEMPTS_EXHAUSTED" if losses == 3 else "INVALID_REQUEST")
    assert told.count("ATTEMPTS_EXHAUSTED") == losses


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


def test_a_type_checker_sees_every_option_of_update_actor():
    submit = set(inspect.signature(stemma.Client.submit).parameters)
    overloads = typing.get_overloads(stemma.Client.update_actor)
    assert len(overloads) == 3
    for overload in overloads:
        assert set(inspect.signature(overload).parameters) == submit | {"wait"}


def test_a_client_says_which_server_and_lineage_it_has():
    with FakeServer({"GetModel": lambda *_: Model(lineage="L1")}) as server, stemma.Client(server.address) as client:
        assert repr(client) == f"Client('{server.address}')"
        client.model()
        assert repr(client) == f"Client('{server.address}', lineage L1)"
