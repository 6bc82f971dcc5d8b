"""E5: Ctrl-C while an update runs says what becomes of the request; with cancel_on_interrupt it is cancelled."""

import os
import re
import signal
import subprocess
import sys

import pytest
import stemma
from e2e.errors.server import PATIENCE_S, Cluster, wait_for

# The client of a user: one update of many steps. Argument: address, and what more update_actor is given.
SCRIPT = """
import sys, stemma
client = stemma.Client(sys.argv[1])
client.info()
groups = [stemma.Group(f"g{g}", [1, 2, 3], [stemma.Rollout([4 + r, 5], reward=float(r)) for r in range(2)]) for g in range(2)]
print("sending", flush=True)
client.update_actor(groups, stemma.grpo(), stemma.adamw(1e-3), mini_batch=1, epochs=10_000, **eval(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(config="limits:\n  steps: 20000\n") as running:  # more than a loaded test leaves time for
        yield running


def interrupt(cluster, options):
    """(what the user saw, the request's id) of a script that gets SIGINT while its request runs."""
    client = stemma.Client(cluster.address)
    before = {r["request_id"] for r in client.requests()}
    user = subprocess.Popen([sys.executable, "-c", SCRIPT, cluster.address, repr(options)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)
    try:
        new = wait_for(lambda: {r["request_id"] for r in client.requests() if r["steps_applied"] > 0} - before, "a step")
        user.send_signal(signal.SIGINT)
        out, err = user.communicate(timeout=PATIENCE_S)
    finally:
        user.kill()
        user.wait()
    assert user.returncode not in (0, None) and "sending" in out
    return err, new.pop()


def test_e5_ctrl_c_says_that_the_request_goes_on_and_how_to_reach_it(cluster):
    text, request_id = interrupt(cluster, {})
    print(text)
    last = text.strip().splitlines()[-1]
    assert f"request {request_id} goes on at the server" in last and "cancel_on_interrupt=True" in last
    assert len(text.splitlines()) < 40 and "_InactiveRpcError" not in text
    # What it says works: the words are run as they stand.
    client = stemma.Client(cluster.address)
    attach = re.search(r"client\.attach\('[^']+'\)(?=\.cancel\(\))", last).group()
    state = client.attach(request_id).status
    assert state["state"] in ("PREPARING", "COMMITTED", "APPLIED") and state["steps_applied"] < state["steps_total"] == 20_000
    future = eval(attach, {"client": client})
    assert future.request_id == request_id and future.cancel() in (True, False)
    wait_for(future.done, "the cancel to take effect")
    assert future.status["state"] == "CANCELLED"


def test_e5_with_cancel_on_interrupt_it_is_cancelled_and_says_so(cluster):
    text, request_id = interrupt(cluster, {"cancel_on_interrupt": True})
    print(text)
    last = text.strip().splitlines()[-1]
    assert f"request {request_id} was" in last and "goes on" not in last
    future = stemma.Client(cluster.address).attach(request_id)
    wait_for(future.done, "the cancel to take effect")
    assert future.status["state"] == "CANCELLED" and future.status["steps_applied"] < 20_000


def test_e5_the_id_is_one_that_the_caller_gave(cluster):
    text, request_id = interrupt(cluster, {"request_id": "mine/1", "cancel_on_interrupt": True})
    assert request_id == "mine/1" and "mine/1" in text


def test_e5_it_is_a_keyboard_interrupt_with_the_id_and_the_state(cluster):
    """`except KeyboardInterrupt` catches it, `except Exception` does not."""
    client = stemma.Client(cluster.address)
    groups = [stemma.Group("g", [1, 2], [stemma.Rollout([3, 4], reward=float(r)) for r in range(2)])]
    future = client.submit(groups, stemma.grpo(), stemma.adamw(1e-3), epochs=20_000, cancel_on_interrupt=True)
    poll = client._get_request
    client._get_request = lambda *_: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as error:
        future.result()
    client._get_request = poll
    assert isinstance(error.value, stemma.RequestInterrupted) and not isinstance(error.value, Exception)
    assert error.value.request_id == future.request_id and error.value.state is not None
    wait_for(future.done, "the cancel to take effect")
    assert future.status["state"] == "CANCELLED"


@pytest.mark.parametrize("state, says", [(None, "goes on at the server"), ("CANCELLED", "was cancelled"), ("DONE", "is DONE"),
                                         ("PREPARING", "is PREPARING"), ("", "did not answer the cancel")])
def test_e5_each_outcome_of_the_cancel_has_its_words(state, says):
    assert says in str(stemma.RequestInterrupted("r", state)) and "r" in str(stemma.RequestInterrupted("r", state))


@pytest.mark.parametrize("cancel", [False, True])
def test_e5_while_it_is_sent_nobody_knows_whether_it_goes_on(cancel):
    """Before the server has answered, "it goes on" would be a guess."""
    client = stemma.Client("127.0.0.1:1")
    client._connection.reach = lambda _: os.kill(os.getpid(), signal.SIGINT)
    groups = [stemma.Group("g", [1, 2], [stemma.Rollout([3, 4], reward=1.0)])]
    with pytest.raises(stemma.RequestInterrupted) as error:
        client.submit(groups, stemma.grpo(), stemma.adamw(1e-3), request_id="mine/2", cancel_on_interrupt=cancel)
    assert "may have taken it" in str(error.value) and "client.attach('mine/2')" in str(error.value)
    assert not error.value.accepted


def test_e5_a_local_server_lives_through_ctrl_c_of_the_script(cluster, tmp_path):
    """`stemma local` is a process of the script: the terminal's signal must not end what the request goes on at."""
    from e2e.errors.server import BUILD, MODEL

    script = f"""
import os, signal, stemma
with stemma.LocalServer({str(MODEL)!r}, binary={str(BUILD / "bin/stemma")!r}, threads=1) as server:
    try:
        os.killpg(0, signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        print("server at", stemma.Client(server.address).model()["state"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S,
                          start_new_session=True)
    assert done.stdout == "server at IDLE\n", done
