"""`await future`: how soon a cancelled task lets go of its thread, and that it waits as long as result() does, no longer."""

import asyncio
import concurrent.futures
import logging
import threading
import time
import types

import grpc
import pytest
import stemma
from stemma import _future, _proto, _stub, client as client_module

from e2e.own_loopback import channel_to
from client_test import finished, results_stream, status, update
from fake_server import FakeServer, abort
from waiting_test import ACCEPTED, preparing, stopping, unavailable

IDLE_S = 5  # a thread is free so soon after its task was cancelled
AWAIT_S = 30  # an await that has not ended by then never will
TRAINS = {"UpdateActor": lambda parts, _: status(list(parts)[0].update.request.request_id, "ACCEPTED", lineage="a-1")}


def forget(_, context):
    abort(context, grpc.StatusCode.NOT_FOUND, "there is none", "NOT_FOUND")


def wait_in_task(server, begun, **options):
    """Cancels a task that awaits a future once the server was asked for it; returns how long its thread took to be free."""
    async def run(client):
        task = asyncio.ensure_future(update(client, wait=False, request_id="r", **options)._wait())
        while not begun.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        while any(thread.name.startswith(_future._THREAD) for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
        return time.monotonic() - began

    with stemma.Client(server.address, retry_delay_s=0.05, recovery_timeout_s=4 * IDLE_S) as client:
        return asyncio.run(run(client))


@pytest.mark.parametrize("what", ["recovers", "stands still", "recovers when it is asked for log-probs",
                                  "stands still while it sends log-probs", "stands still when it is asked for the model"])
def test_a_cancelled_task_lets_go_of_its_thread(what, monkeypatch):
    """However long the answer may take by then."""
    monkeypatch.setattr(_future, "_ASYNC_ANSWER_S", _future._ASYNC_ANSWER_MAX_S)
    begun, stands = threading.Event(), threading.Event()

    def refuse(request, context):
        begun.set()
        unavailable("RECOVERING")(request, context)

    def stand_still(*_):
        begun.set()
        stands.wait(4 * IDLE_S)

    def send_one(*_):
        yield next(results_stream())
        stand_still()

    done = {"GetRequest": lambda *_: finished("r")}
    handlers = {"recovers": {"GetRequest": refuse}, "stands still": {"GetRequest": stand_still},
                "recovers when it is asked for log-probs": {**done, "ReadResults": refuse},
                "stands still while it sends log-probs": {**done, "ReadResults": send_one},
                "stands still when it is asked for the model": {"GetRequest": forget, "GetModel": stand_still}}
    with FakeServer({**TRAINS, **handlers[what]}) as server:
        took_s = wait_in_task(server, begun, return_log_probs=True)
        stands.set()
    assert took_s < IDLE_S  # else as long as recovery_timeout_s, and of a server that stands still 40 s


def test_what_many_tasks_await_leaves_the_loops_own_threads_to_others(monkeypatch):
    """However long the answers may take by then."""
    monkeypatch.setattr(_future, "_ASYNC_ANSWER_S", _future._ASYNC_ANSWER_MAX_S)
    begun, answer = threading.Event(), threading.Event()

    def stand_still(request, _):
        begun.set()
        answer.wait(2 * AWAIT_S)
        return finished(request.request_id)

    async def run(client):
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(max_workers=4))
        tasks = [asyncio.ensure_future(update(client, wait=False)) for _ in range(16)]
        while not begun.is_set():
            await asyncio.sleep(0.01)
        try:
            await asyncio.wait_for(loop.run_in_executor(None, int), AWAIT_S)
        finally:
            answer.set()
        return [type(result) for result in await asyncio.gather(*tasks)]

    with FakeServer({**ACCEPTED, "GetRequest": stand_still}) as server, stemma.Client(server.address) as client:
        assert asyncio.run(run(client)) == [stemma.UpdateResult] * 16


def test_a_call_that_is_made_after_the_cancel_ends_at_once():
    """A thread may have been about to make it."""
    stands = threading.Event()
    with FakeServer({"GetModel": lambda *_: stands.wait(4 * IDLE_S)}) as server, channel_to(server.address) as channel:
        stub = _stub.CancellableStub(_stub.TrainingStub(channel), answer_s=4 * IDLE_S)
        stub.cancel()
        began = time.monotonic()
        with pytest.raises(grpc.FutureCancelledError):
            stub.GetModel(_proto.GetModelRequest())
        stands.set()
    assert time.monotonic() - began < IDLE_S


def test_closing_a_client_ends_what_a_task_awaits():
    begun, stands = threading.Event(), threading.Event()

    def stand_still(*_):
        begun.set()
        stands.wait(4 * IDLE_S)

    async def run(client):
        task = asyncio.ensure_future(update(client, wait=False)._wait())
        while not begun.is_set():
            await asyncio.sleep(0.01)
        client.close()
        with pytest.raises(stemma.StemmaError, match="was closed while the call ran"):
            await asyncio.wait_for(task, AWAIT_S)

    with FakeServer({**ACCEPTED, "GetRequest": stand_still}) as server, stemma.Client(server.address) as client:
        asyncio.run(run(client))
        stands.set()


@pytest.mark.parametrize("option", [True, False])
def test_a_cancelled_task_cancels_its_request_where_that_was_asked_for(option):
    begun, cancelled = threading.Event(), []

    def ask(*_):
        begun.set()
        return preparing("r")

    def cancel(request, _):
        cancelled.append(request.request_id)
        return status("r", "CANCELLED")

    with FakeServer({**ACCEPTED, "GetRequest": ask, "CancelRequest": cancel}) as server:
        wait_in_task(server, begun, cancel_on_interrupt=option)
    assert cancelled == ["r"] * option


def test_a_cancel_that_nobody_answered_is_in_the_log(caplog):
    begun = threading.Event()

    def refuse(request, context):
        begun.set()
        unavailable("RECOVERING")(request, context)

    with FakeServer({**ACCEPTED, "GetRequest": refuse, "CancelRequest": refuse}) as server:
        with caplog.at_level(logging.WARNING, "stemma"):
            wait_in_task(server, begun, cancel_on_interrupt=True)
    assert "request r may go on: the server did not answer the cancel" in caplog.text


def awaited(handlers, **options):
    async def run(client):
        future = update(client, wait=False, request_id="r", return_log_probs=True)
        return await asyncio.wait_for(future._wait(), AWAIT_S)

    with FakeServer({**ACCEPTED, "ReadResults": results_stream, **handlers}) as server:
        with stemma.Client(server.address, **{"retry_delay_s": 0.01, **options}) as client:
            return asyncio.run(run(client))


def test_what_wants_a_task_takes_one_of_a_future():
    async def run(client):
        task = asyncio.ensure_future(update(client, wait=False, request_id="r"))
        done, _ = await asyncio.wait([task], timeout=AWAIT_S)
        return [one.result().request_id for one in done]

    with FakeServer({**ACCEPTED, "GetRequest": lambda *_: finished("r")}) as server, stemma.Client(server.address) as client:
        assert asyncio.run(run(client)) == ["r"]


def answers(*each):
    """A handler that answers one after the other, the last one again and again; and what it was asked."""
    asked = []

    def handle(request, context):
        asked.append(request)
        return each[min(len(asked), len(each)) - 1](request, context)
    return handle, asked


def test_a_server_that_recovers_is_waited_for_longer_than_retries_last_and_the_log_says_so_once(caplog):
    recovers, done = unavailable("RECOVERING"), lambda *_: finished("r")
    get_request, asked = answers(recovers, recovers, recovers, done)
    read_results, read = answers(recovers, recovers, results_stream)
    result = awaited({"GetRequest": get_request, "ReadResults": read_results}, retries=1)
    assert len(asked) == 4 and len(read) == 3 and set(result.log_probs) == {"g0/0", "g0/1"}
    assert [record.name for record in caplog.records].count("stemma") == 2, "once for each call"


def test_a_server_that_is_away_is_given_up_after_the_retries():
    get_request, asked = answers(unavailable(""))
    with pytest.raises(stemma.StemmaError, match="UNAVAILABLE"):
        awaited({"GetRequest": get_request}, retries=2)
    assert len(asked) == 3


def test_a_server_that_recovers_is_given_up_after_the_recovery_timeout():
    get_request, _ = answers(unavailable("RECOVERING"))
    with pytest.raises(stemma.StemmaError, match="RECOVERING"):
        awaited({"GetRequest": get_request}, retries=1, recovery_timeout_s=0.2)


def test_a_request_that_a_stopping_server_let_go_is_asked_of_the_next_one():
    get_request, asked = answers(lambda *_: stopping("r"), unavailable("RECOVERING"), lambda *_: finished("r"))
    assert awaited({"GetRequest": get_request}).request_id == "r" and len(asked) == 3
    get_request, asked = answers(lambda *_: stopping("r"), unavailable(""))
    with pytest.raises(stemma.StemmaError, match="DRAINING"):
        awaited({"GetRequest": get_request}, retries=2)
    assert len(asked) == 4


def test_a_server_that_takes_long_to_answer_is_asked_again(monkeypatch):
    monkeypatch.setattr(_future, "_ASYNC_ANSWER_S", 0.2)
    get_request, asked = answers(lambda *_: time.sleep(0.5), lambda *_: finished("r"))
    assert awaited({"GetRequest": get_request}).request_id == "r" and len(asked) >= 2


def test_an_answer_that_always_takes_long_comes_through_and_the_log_says_once_that_it_is_late(monkeypatch, caplog):
    """A loaded server, or a result with a trace over a slow link."""
    monkeypatch.setattr(_future, "_ASYNC_ANSWER_S", 0.2)

    def answer_late(*_):
        time.sleep(0.5)
        return finished("r")

    get_request, asked = answers(answer_late)
    assert awaited({"GetRequest": get_request}).request_id == "r" and len(asked) >= 3
    told = [record.getMessage() for record in caplog.records if record.name == "stemma"]
    assert len(told) == 1 and "no answer about request r" in told[0]


def test_each_answer_gets_twice_the_time_of_the_one_that_did_not_come(monkeypatch):
    given_s = []

    class Stub(_stub.TrainingStub):
        def __init__(self, channel):
            super().__init__(channel)
            call = self.GetRequest

            def begin(request, timeout):
                given_s.append(timeout)
                return call.future(request, timeout=timeout)
            self.GetRequest = types.SimpleNamespace(future=begin)

    def refuse(_, context):
        abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "a proxy's")

    monkeypatch.setattr(client_module, "TrainingStub", Stub)
    get_request, _ = answers(*[refuse] * 7, lambda *_: preparing("r"), refuse, lambda *_: finished("r"))
    awaited({"GetRequest": get_request})
    assert given_s == [3, 6, 12, 24, 48, 60, 60, 60, 3, 6]


def test_a_proxy_that_gives_up_at_once_is_asked_again_no_sooner_than_retry_delay_s():
    at = []

    def refuse(_, context):
        at.append(time.monotonic())
        abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "a proxy's")

    get_request, _ = answers(refuse, refuse, refuse, lambda *_: finished("r"))
    awaited({"GetRequest": get_request}, retry_delay_s=0.2)
    assert all(later - sooner >= 0.2 for sooner, later in zip(at, at[1:]))


def test_a_model_whose_answer_does_not_come_is_asked_for_again(monkeypatch):
    """By it a server that forgot the request is told from one that lost it."""
    monkeypatch.setattr(_future, "_ASYNC_ANSWER_S", 0.2)
    stands = threading.Event()
    get_model, asked = answers(lambda *_: stands.wait(AWAIT_S),
                               lambda *_: _proto.message_class("stemma.v1.ModelInfo")(lineage="b-2"))
    try:
        with pytest.raises(stemma.LineageLostError, match="lineage a-1 is gone"):
            awaited({**TRAINS, "GetRequest": forget, "GetModel": get_model})
    finally:
        stands.set()
    assert len(asked) >= 2


def test_another_error_is_raised():
    def refuse(_, context):
        context.abort(grpc.StatusCode.INTERNAL, "broken")

    with pytest.raises(stemma.StemmaError, match="INTERNAL: broken"):
        awaited({"GetRequest": refuse})
