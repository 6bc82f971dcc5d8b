"""A request that was accepted, and whose workers are away: how long it is waited for, and what is said meanwhile."""

import asyncio
import itertools
import time
import types

import grpc
import pytest
import stemma
from stemma import _proto, _recovery

from client_test import finished, status, update
from fake_server import FakeServer, abort
from waiting_test import ACCEPTED, preparing

LACK = "0 of 2 workers are there; worker w2 left: its connection ended"
Model = _proto.message_class("stemma.v1.ModelInfo")


class Away:
    """A server that keeps a request ACCEPTED while its model is in the states, one for each time it is asked for it, the last
    again and again; then `ends` it, if it does."""

    def __init__(self, *states, ends=None):
        self.asked, self._states, self._ends = 0, list(states), ends
        self.handlers = {**ACCEPTED, "GetRequest": self._request, "GetModel": self._model}

    def _request(self, request, _):
        over = self._ends is not None and self.asked >= len(self._states)
        return self._ends(request.request_id) if over else status(request.request_id, "ACCEPTED")

    def _model(self, *_):
        state = self._states[min(self.asked, len(self._states) - 1)]
        self.asked += 1
        return Model(state=Model.State.Value(state), state_reason=LACK)


def awaited(client):
    async def run():
        return await update(client, wait=False)
    return asyncio.run(run())


def result(client, timeout_s=None):
    return update(client, wait=False).result(timeout_s)


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "stemma"]


@pytest.mark.parametrize("state", ["LOADING", "RECOVERING"])
@pytest.mark.parametrize("wait", [result, awaited, update])
def test_workers_that_do_not_come_are_waited_for_as_long_as_the_client_says(state, wait, caplog):
    begin = time.monotonic()
    with FakeServer(Away(state).handlers) as server, stemma.Client(server.address, recovery_timeout_s=0.5) as client:
        with pytest.raises(stemma.StemmaError, match="RECOVERING.*has not served for 0 s.*runs when it does.*0 of 2 workers") as error:
            wait(client)
    assert error.value.code == "UNAVAILABLE" and error.value.request_id
    assert 0.5 <= time.monotonic() - begin < 20
    assert len(told(caplog)) == 1 and told(caplog)[0].endswith(f"for at most 0 s: {LACK}")


def test_each_time_that_it_serves_again_the_wait_begins_anew(monkeypatch, caplog):
    times = itertools.count(10, 10)  # two of them pass for each look at a server that is away
    monkeypatch.setattr(_recovery, "time", types.SimpleNamespace(monotonic=lambda: next(times)))
    away = Away("RECOVERING", "IDLE", "RECOVERING", "STEPPING", ends=finished)
    with FakeServer(away.handlers) as server, stemma.Client(server.address, recovery_timeout_s=15) as client:
        assert update(client).request_id
    assert away.asked == 4 and len(told(caplog)) == 2


def test_a_wait_that_was_given_up_can_be_made_again():
    with FakeServer(Away("RECOVERING").handlers) as server, stemma.Client(server.address, recovery_timeout_s=0.2) as client:
        future = update(client, wait=False)
        for _ in range(2):
            begin = time.monotonic()
            with pytest.raises(stemma.StemmaError, match="RECOVERING"):
                future.result()
            assert time.monotonic() - begin >= 0.2


def test_a_time_of_its_own_is_over_first():
    with FakeServer(Away("RECOVERING").handlers) as server, stemma.Client(server.address, recovery_timeout_s=60) as client:
        with pytest.raises(TimeoutError, match="is ACCEPTED after 0.2 s"):
            result(client, 0.2)


@pytest.mark.parametrize("wait", [result, awaited])
def test_a_request_that_runs_asks_nothing_else(wait):
    polls, asked = [], []

    def get_request(request, _):
        polls.append(request)
        return (finished if len(polls) > 3 else preparing)(request.request_id)

    handlers = {**ACCEPTED, "GetRequest": get_request, "GetModel": lambda *_: asked.append(1)}
    with FakeServer(handlers) as server, stemma.Client(server.address) as client:
        assert wait(client).request_id
    assert len(polls) == 4 and not asked


def test_a_server_that_cannot_say_it_is_waited_for(caplog):
    away = Away("RECOVERING", ends=finished)

    def unknown(_, context):
        away.asked += 1
        abort(context, grpc.StatusCode.UNIMPLEMENTED, "no such call")

    with FakeServer({**away.handlers, "GetModel": unknown}) as server, stemma.Client(server.address, recovery_timeout_s=0) as client:
        assert update(client).request_id
    assert away.asked == 1 and not told(caplog)
