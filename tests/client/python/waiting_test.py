"""What a client waits for and how long: timeouts, a server that stops and is there again, errors that cross processes."""

import math
import pickle
import threading
import time
import types

import grpc
import pytest
import stemma
from stemma import _proto, _tries, client as client_module

from client_test import finished, results_stream, status, update
from fake_server import FakeServer, abort

ACCEPTED = {"UpdateActor": lambda parts, _: status(list(parts)[0].update.request.request_id, "ACCEPTED")}


def preparing(request_id):
    return status(request_id, "PREPARING")


def unavailable(reason):
    def refuse(_, context):
        abort(context, grpc.StatusCode.UNAVAILABLE, "the weights are computed again", reason)
    return refuse


def stopping(request_id):
    """What a server that drains answers of a request that waits."""
    out = status(request_id, "FAILED")
    out.failure.code, out.failure.reason, out.failure.message = grpc.StatusCode.UNAVAILABLE.value[0], "DRAINING", "the server stops"
    return out


@pytest.mark.parametrize("error", [
    stemma.StemmaError("INVALID_ARGUMENT", "INVALID_REQUEST", "lr", [("adam.lr", "is -1")], "g0", {"a": "b"}, 1.5),
    stemma.LineageLostError("ABORTED", "ROLLED_BACK", "lost", metadata={"lost_lineage": "L-1", "lost_step": "3"}),
    stemma.RequestInterrupted("r1", "CANCELLED", accepted=False)])
def test_errors_cross_processes_whole(error):
    """Pools of RL frameworks pickle what their workers raise."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and vars(again) == vars(error) and str(again) == str(error)


def test_a_result_that_is_there_needs_no_time(monkeypatch):
    monkeypatch.setattr(client_module, "_ANSWER_S", 30)  # a loaded machine is late
    done = threading.Event()
    handlers = {**ACCEPTED, "GetRequest": lambda request, _: (finished if done.is_set() else preparing)(request.request_id)}
    with FakeServer(handlers) as server, stemma.Client(server.address) as client:
        future = update(client, wait=False)
        with pytest.raises(TimeoutError, match="is PREPARING after 0 s"):
            future.result(timeout_s=0)
        done.set()
        assert future.result(timeout_s=0).request_id == future.request_id
        assert update(client, timeout_s=math.inf).request_id


@pytest.mark.parametrize("timeout_s", [7e9, 1e10, 1e19, 1e300, pytest.param(10**400, id="10**400")])
def test_a_timeout_of_centuries_is_not_over_at_once(timeout_s):
    """gRPC's deadlines end in the year 2262."""
    handlers = {**ACCEPTED, "GetRequest": lambda request, _: finished(request.request_id), "ReadResults": results_stream}
    with FakeServer(handlers) as server, stemma.Client(server.address) as client:
        assert update(client, return_log_probs=True, timeout_s=timeout_s).log_probs


def test_a_timeout_holds_for_the_first_connection():
    begin = time.monotonic()
    with stemma.Client("127.0.0.1:1", connect_timeout_s=60) as client:
        with pytest.raises(TimeoutError, match="no answer in 0.1 s to a question for .*no Stemma server answers at 127.0.0.1:1 "):
            client.info(timeout_s=0.1)
        with pytest.raises(TimeoutError, match="was not taken in 0.1 s"):
            update(client, timeout_s=0.1)
    assert time.monotonic() - begin < 30


def test_threads_that_look_for_a_server_at_once_give_up_at_once():
    took_s = []

    def look(client):
        begin = time.monotonic()
        with pytest.raises(stemma.StemmaError, match="no Stemma server answers"):
            client.info()
        took_s.append(time.monotonic() - begin)

    with stemma.Client("127.0.0.1:1", connect_timeout_s=2) as client:
        threads = [threading.Thread(target=look, args=(client,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(took_s) == 8 and max(took_s) < 8  # one after the other: 16


@pytest.mark.parametrize("handlers", [ACCEPTED, {"UpdateActor": unavailable("RECOVERING")},
                                      {**ACCEPTED, "GetRequest": unavailable("RECOVERING")}])
def test_a_timeout_says_which_request_it_is_about(handlers):
    handlers = {"GetRequest": lambda *_: preparing("r"), **handlers}
    with FakeServer(handlers) as server, stemma.Client(server.address) as client:
        with pytest.raises(TimeoutError) as error:
            update(client, timeout_s=0.1, request_id="r")
    assert error.value.request_id == "r"


@pytest.mark.parametrize("timeout_s", [-1, math.nan, "5", True])
def test_a_timeout_that_is_none_is_refused_before_anything_is_sent(timeout_s):
    sent = []
    with FakeServer({"UpdateActor": lambda parts, _: sent.append(list(parts))}) as server, stemma.Client(server.address) as client:
        with pytest.raises(ValueError, match="timeout_s is"):
            update(client, timeout_s=timeout_s)
    assert not sent


def test_a_timeout_holds_where_the_server_recovers_or_does_not_answer():
    """A server that stands still answers nothing; the client's own calls end by themselves."""
    stands = threading.Event()
    handlers = {"UpdateActor": unavailable("RECOVERING"), "GetRequest": lambda request, _: stands.wait(30) and preparing("r")}
    begin = time.monotonic()
    with FakeServer(handlers) as server, stemma.Client(server.address) as client:
        with pytest.raises(TimeoutError, match="was not taken in 0.3 s .*the same request_id"):
            update(client, timeout_s=0.3)
        with FakeServer({**ACCEPTED, "GetRequest": handlers["GetRequest"]}) as still, stemma.Client(still.address) as waiting:
            with pytest.raises(TimeoutError, match="was ACCEPTED when it was last heard of"):
                update(waiting, timeout_s=0.3)
            stands.set()
    assert time.monotonic() - begin < 25  # 0.3 s each and a second for an answer; without a limit 30 s and an hour


@pytest.mark.parametrize("reason", ["STARTING", "RECOVERING"])
def test_a_server_that_loads_is_waited_for_longer_than_retries_last_and_the_log_says_so(reason, caplog):
    refused = []

    def refuse_four_times(parts, context):
        parts = list(parts)
        if len(refused) < 4:
            refused.append(parts[0].update.request.request_id)
            abort(context, grpc.StatusCode.UNAVAILABLE, "no worker has loaded the model yet", reason)
        return status(parts[0].update.request.request_id, "ACCEPTED")

    with FakeServer({**ACCEPTED, "UpdateActor": refuse_four_times}) as server:
        with stemma.Client(server.address, retries=1, retry_delay_s=0.01) as client:
            future = update(client, wait=False)
    assert set(refused) == {future.request_id} and len(refused) == 4
    told = [record for record in caplog.records if record.name == "stemma"]
    assert len(told) == 1 and "no worker has loaded the model yet" in told[0].getMessage()


@pytest.mark.parametrize("reason, tries", [("STARTING", 5), ("DRAINING", 1 + 2)])  # the fifth try takes until the 60 s are over
def test_a_server_that_loads_is_given_up_after_the_recovery_timeout_and_one_that_drains_after_the_retries(reason, tries, monkeypatch):
    made = []
    monkeypatch.setattr(client_module, "time", types.SimpleNamespace(monotonic=lambda: (0, 0, 0, 0, 59.9, 60)[min(len(made), 5)]))

    def refuse(parts, context):
        made.append(len(list(parts)))
        assert len(made) < 40, "it is never given up"
        abort(context, grpc.StatusCode.UNAVAILABLE, "not now", reason)

    with FakeServer({"UpdateActor": refuse}) as server, pytest.raises(stemma.StemmaError, match=reason):
        update(stemma.Client(server.address, retries=2, retry_delay_s=0.01, recovery_timeout_s=60), wait=False)
    assert len(made) == tries


def test_pauses_double_up_to_five_seconds_however_many_retries_there_are(monkeypatch, caplog):
    """2**1024 is no float. The log says that the server is away, and says it once."""
    pauses = []
    monkeypatch.setattr(_tries.time, "sleep", pauses.append)
    with FakeServer({"GetModel": unavailable("")}) as server, stemma.Client(server.address, retries=1100) as client:
        with pytest.raises(stemma.StemmaError, match="UNAVAILABLE"):
            client.model()
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2] + [5.0] * 1095
    told = [record.getMessage() for record in caplog.records if record.name == "stemma"]
    assert len(told) == 1 and "is away, and is tried 1097 times more" in told[0], told


def test_a_server_that_is_away_is_waited_for_as_long_as_a_pod_takes(monkeypatch):
    pauses = []
    monkeypatch.setattr(_tries.time, "sleep", pauses.append)
    with FakeServer({"GetModel": unavailable("")}) as server, stemma.Client(server.address) as client:
        with pytest.raises(stemma.StemmaError, match="UNAVAILABLE"):
            client.model()
    assert 240 < sum(pauses) < 360


def test_nothing_is_sent_again_sooner_than_the_server_asks_for():
    at = []

    def refuse_once(parts, context):
        at.append(time.monotonic())
        first = list(parts)[0]
        if len(at) == 1:
            abort(context, grpc.StatusCode.UNAVAILABLE, "loading", "STARTING", retry_delay_s=0.4)
        return status(first.update.request.request_id, "ACCEPTED")

    with FakeServer({**ACCEPTED, "UpdateActor": refuse_once}) as server:
        with stemma.Client(server.address, retry_delay_s=0.01) as client:
            update(client, wait=False)
    assert at[1] - at[0] >= 0.4


def recovers_when_asked_for_log_probs():
    return {"UpdateActor": lambda parts, _: finished(list(parts)[0].update.request.request_id),
            "ReadResults": unavailable("RECOVERING")}


def stands_still_while_it_sends_log_probs(stands):
    def read_results(*_):
        yield next(results_stream())
        stands.wait(20)
    return {**recovers_when_asked_for_log_probs(), "ReadResults": read_results}


def recovers_when_it_does_not_know_the_request():
    def forget(_, context):
        abort(context, grpc.StatusCode.NOT_FOUND, "there is none", "NOT_FOUND")

    accept = lambda parts, _: status(list(parts)[0].update.request.request_id, "ACCEPTED", lineage="a-1")  # noqa: E731
    return {"UpdateActor": accept, "GetRequest": forget, "GetModel": unavailable("RECOVERING")}


@pytest.mark.parametrize("state, handlers", [
    ("DONE", lambda _: recovers_when_asked_for_log_probs()), ("DONE", stands_still_while_it_sends_log_probs),
    ("ACCEPTED", lambda _: recovers_when_it_does_not_know_the_request())])
def test_a_timeout_holds_for_all_that_a_result_asks_the_server(state, handlers):
    stands, begin = threading.Event(), time.monotonic()
    with FakeServer(handlers(stands)) as server:
        with stemma.Client(server.address, retries=1, recovery_timeout_s=10) as client:
            with pytest.raises(TimeoutError, match=f"was {state} when it was last heard of, and there was no answer in 0.3 s"):
                update(client, return_log_probs=True, timeout_s=0.3)
            future = update(client, wait=False, return_log_probs=True)
            with pytest.raises(TimeoutError, match="no answer in 0.2 s"):
                future.result(timeout_s=0.2)
            stands.set()
    assert time.monotonic() - begin < 10  # 0.5 s, and a second for each answer


def test_a_failure_of_the_request_is_no_timeout_however_late():
    with FakeServer({"UpdateActor": lambda *_: stopping("r")}) as server:
        with stemma.Client(server.address, retries=0) as client:
            with pytest.raises(stemma.StemmaError, match="DRAINING"):
                update(client, timeout_s=0, request_id="r")


def test_what_the_server_answered_late_is_its_answer():
    """A refusal that comes when the time is over is no timeout: nothing was taken, and sending it again changes nothing."""
    def refuse(_, context):
        time.sleep(0.4)
        abort(context, grpc.StatusCode.INVALID_ARGUMENT, "lr is -1", "INVALID_REQUEST")

    with FakeServer({"UpdateActor": refuse}) as server, stemma.Client(server.address) as client:
        with pytest.raises(stemma.StemmaError, match="INVALID_REQUEST"):
            update(client, timeout_s=0.1)
    with FakeServer({**ACCEPTED, "GetRequest": refuse}) as server, stemma.Client(server.address) as client:
        with pytest.raises(stemma.StemmaError, match="INVALID_REQUEST"):
            update(client, wait=False).result(timeout_s=0.1)


def test_a_request_that_a_stopping_server_let_go_is_asked_of_the_next_one():
    answers = [stopping("r"), stopping("r"), finished("r")]
    handlers = {"UpdateActor": lambda *_: status("r", "ACCEPTED"), "GetRequest": lambda *_: answers.pop(0)}
    with FakeServer(handlers) as server, stemma.Client(server.address) as client:
        future = update(client, wait=False, request_id="r")
        assert not future.done(), "the next server goes on with it"
        assert future.result().request_id == "r"
    with FakeServer({**handlers, "GetRequest": lambda *_: stopping("r")}) as server:
        with stemma.Client(server.address, retries=0) as client:
            with pytest.raises(stemma.StemmaError, match="DRAINING"):
                update(client, request_id="r")


def test_what_a_stopping_server_said_is_the_error_where_no_next_one_comes():
    asked = []

    def get_request(_, context):
        asked.append(1)
        return stopping("r") if len(asked) == 1 else abort(context, grpc.StatusCode.UNAVAILABLE, "gone")

    handlers = {"UpdateActor": lambda *_: status("r", "ACCEPTED"), "GetRequest": get_request}
    with FakeServer(handlers) as server, stemma.Client(server.address, retries=2, retry_delay_s=0.01) as client:
        with pytest.raises(stemma.StemmaError, match="DRAINING"):
            update(client, request_id="r")
    assert len(asked) == 4


@pytest.mark.parametrize("method,call", [("DeleteCheckpoint", lambda c: c.delete_checkpoint("one")),
                                         ("DeleteExport", lambda c: c.delete_export("one"))])
def test_a_delete_whose_answer_was_lost_has_deleted(method, call):
    calls = []

    def delete(_, context):
        calls.append(1)
        abort(context, *((grpc.StatusCode.UNAVAILABLE, "lost") if len(calls) == 1 else
                         (grpc.StatusCode.NOT_FOUND, "there is none", "NOT_FOUND")))

    with FakeServer({method: delete}) as server, stemma.Client(server.address, retry_delay_s=0.01) as client:
        call(client)
        with pytest.raises(stemma.StemmaError, match="NOT_FOUND"):
            call(client)  # the first answer counts
    assert len(calls) == 3


@pytest.mark.parametrize("call", [lambda c: c.export(5), lambda c: c.export("x", dtype=5), lambda c: c.attach(5),
                                  lambda c: c.save_checkpoint(5), lambda c: c.load_checkpoint(5), lambda c: c.read_log_probs(5),
                                  lambda c: c.save_checkpoint(""), lambda c: c.load_checkpoint(""),
                                  lambda c: c.delete_checkpoint(""), lambda c: c.delete_export(""), lambda c: update(c, request_id="")])
def test_a_name_that_is_none_is_refused_by_its_field(call):
    with FakeServer({}) as server, stemma.Client(server.address) as client:
        with pytest.raises(ValueError, match=r"^(name|dtype|request_id) is (5|''): pass a string"):
            call(client)


@pytest.mark.parametrize("reached", [True, False])
def test_a_call_of_a_client_that_is_closed_says_so_at_once(reached, monkeypatch):
    aloud = []
    monkeypatch.setattr(threading, "excepthook", aloud.append)
    with FakeServer({**ACCEPTED, "GetModel": lambda *_: _proto.message_class("stemma.v1.ModelInfo")()}) as server:
        client = stemma.Client(server.address, connect_timeout_s=30)
        if reached:
            future = update(client, wait=False)
        client.close()
        client.close()
        begin = time.monotonic()
        for call in [client.model, lambda: update(client), *([future.result] if reached else [])]:
            with pytest.raises(ValueError, match=f"^this client of {server.address} is closed: make another stemma.Client"):
                call()
        assert time.monotonic() - begin < 10  # it looked for the server for connect_timeout_s
    assert not aloud


def test_closing_a_client_ends_what_waits_for_a_server_and_what_a_server_works_on(monkeypatch):
    aloud, ended, begun, answer = [], [], threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "excepthook", aloud.append)

    def ends(call):
        try:
            call()
        except (ValueError, stemma.StemmaError) as error:
            ended.append(str(error))

    def model(*_):
        begun.set()
        answer.wait(30)

    with FakeServer({"GetModel": model}) as server:
        nobody, busy = stemma.Client("127.0.0.1:1", connect_timeout_s=60), stemma.Client(server.address)
        waiting = [threading.Thread(target=ends, args=(client.model,)) for client in (nobody, busy)]
        for thread in waiting:
            thread.start()
        assert begun.wait(30)
        for client, thread in zip((nobody, busy), waiting):
            client.close()
            thread.join(30)
            assert not thread.is_alive()
        answer.set()
    assert "this client of 127.0.0.1:1 is closed" in ended[0] and "was closed while the call ran" in ended[1] and not aloud


def test_closing_a_client_lets_another_thread_stop_to_look_for_a_server_first():
    """gRPC's own thread, which looks, would fail aloud."""
    client, happened, looks = stemma.Client("127.0.0.1:1"), [], threading.Event()
    connection = client._connection

    def look(_):
        looks.set()
        while not connection._closed:
            time.sleep(0.01)
        time.sleep(0.2)
        happened.append("stopped")

    connection._is_ready_within = look
    connection.channel = types.SimpleNamespace(close=lambda: happened.append("closed"))
    thread = threading.Thread(target=lambda: pytest.raises(ValueError, client.model))
    thread.start()
    assert looks.wait(30)
    client.close()
    thread.join(30)
    assert happened == ["stopped", "closed"]


def test_a_signals_handler_may_close_the_client_that_it_interrupts():
    client, closed = stemma.Client("127.0.0.1:1"), threading.Event()
    client._connection._is_ready_within = lambda _: client.close()
    thread = threading.Thread(target=lambda: pytest.raises(ValueError, client.model) and closed.set(), daemon=True)
    thread.start()
    assert closed.wait(30)


def test_a_client_is_made_in_each_process():
    with FakeServer(ACCEPTED) as server, stemma.Client(server.address) as client:
        for value in (client, update(client, wait=False)):
            with pytest.raises(TypeError, match=r"make a Client in each process .*client.attach\(request_id\)"):
                pickle.dumps(value)


def test_an_advantage_and_one_of_each_token_are_not_both_taken():
    with FakeServer({}) as server, stemma.Client(server.address) as client:
        with pytest.raises(ValueError, match="has advantage and token_advantages: send one"):
            client.submit([{"uid": "g", "prompt_tokens": [1], "rollouts": [
                {"rollout_id": "a", "response_tokens": [2], "advantage": 1.0, "token_advantages": [1.0]}]}],
                stemma.grpo(), stemma.adamw(1e-3))
