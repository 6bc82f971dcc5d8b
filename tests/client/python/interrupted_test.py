"""Ctrl-C at any moment of a call: the main thread is never inside of gRPC, so that no lock is left held there, the call ends,
and the client goes on."""

import _thread
import signal
import threading
import time

import grpc
import pytest
import stemma
from client_test import status, update
from fake_server import FakeServer
from stemma import _stub
from waiting_test import ACCEPTED

PATIENCE_S = 30


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Standing:
    """A handler that stands until its client leaves. `begun`: how often; `gone`: how often a client left."""

    def __init__(self, reads=False):
        self.begun, self.gone, self._reads = 0, 0, reads

    def __call__(self, request, context):
        context.add_callback(self._left)
        self.begun += 1
        if self._reads:
            list(request)
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait(PATIENCE_S)
        return status("r", "PREPARING")  # to nobody

    def _left(self):
        self.gone += 1


def interrupt_when(condition):
    """Ctrl-C in the main thread, as soon as something is so."""
    def run():
        wait_for(condition)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


GROUP = {"uid": "g", "prompt_tokens": [1], "rollouts": [{"response_tokens": [2]}]}
CALLS = {"GetModel": lambda client, **more: client.model(**more), "GetServerInfo": lambda client, **more: client.info(**more),
         "UpdateActor": lambda client, **more: update(client, request_id="r", **more),
         "ComputeLogProb": lambda client, **more: client.log_probs([GROUP], **more)}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_call_ends_at_the_server_and_the_next_one_is_made(name):
    stands = Standing()
    with FakeServer({**ACCEPTED, name: stands}) as server, stemma.Client(server.address) as client:
        for times in range(1, 4):
            interrupts = interrupt_when(lambda: stands.begun == times)
            with pytest.raises(KeyboardInterrupt):
                CALLS[name](client)
            interrupts.join()
            wait_for(lambda: stands.gone == times)
        with pytest.raises(TimeoutError):
            CALLS[name](client, timeout_s=0.1)


def test_no_call_of_the_main_thread_is_made_in_it(monkeypatch):
    """What interrupts it could leave a lock of gRPC held. Other threads are not interrupted, and make their own."""
    makers = []

    def noting(self, request, **_):
        makers.append(threading.current_thread() is threading.main_thread())
        return status("r", "PREPARING")

    monkeypatch.setattr(_stub._Call, "__call__", noting)
    with FakeServer({}) as server, stemma.Client(server.address) as client:
        future = update(client, wait=False)
        future.done()
        future.cancel()
        assert makers and not any(makers)


def test_threads_that_made_interrupted_calls_end():
    stands, warm, times_in_all = Standing(reads=True), 4, 20
    with FakeServer({**ACCEPTED, "UpdateActor": stands}) as server, stemma.Client(server.address) as client:
        for times in range(1, times_in_all + 1):
            interrupts = interrupt_when(lambda: stands.begun == times)
            with pytest.raises(stemma.RequestInterrupted):
                update(client, request_id=f"r{times}")
            interrupts.join()
            wait_for(lambda: stands.gone == times)
            if times == warm:  # the server has its threads
                before = _thread._count()
        wait_for(lambda: _thread._count() <= before + warm)


def test_a_retry_that_was_interrupted_makes_no_further_try():
    tries = []

    def away(request, context):
        tries.append(time.monotonic())
        context.abort(grpc.StatusCode.UNAVAILABLE, "away")

    with FakeServer({"GetModel": away}) as server, stemma.Client(server.address, retries=1000, retry_delay_s=0.05) as client:
        interrupts = interrupt_when(lambda: len(tries) >= 2)
        with pytest.raises(KeyboardInterrupt):
            client.model()
        interrupts.join()
        time.sleep(0.5)
        made = len(tries)
        time.sleep(1)
        assert len(tries) == made


def test_a_dict_with_iterators_may_be_planned_and_then_sent():
    seen = []

    def take(parts, _):
        seen.append([len(part.group.rollouts[0].response_tokens) for part in parts if part.HasField("group")])
        return status("r", "PREPARING")

    with FakeServer({"UpdateActor": take}) as server, stemma.Client(server.address) as client:
        group = {"uid": "g", "prompt_tokens": iter([1, 2]), "rollouts": iter([{"response_tokens": iter([3, 4, 5]), "advantage": 1.0}])}
        for _ in range(2):
            client.plan([group], stemma.grpo(), stemma.adamw(1e-6), old="on_policy")
    assert seen == [[12], [12]]
