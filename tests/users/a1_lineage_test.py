"""A1: weights that are lost are never trained on from the start again without a word: Python client, `stemma replay`, and
what the server says of requests whose weights are gone."""

import signal
import subprocess

import pytest
import stemma
from e2e.errors.good_request import HEADER, group
from e2e.errors.server import BUILD, PATIENCE_S, Cluster, wait_for

STEMMA = BUILD / "bin/stemma"


@pytest.fixture
def cluster():
    with Cluster(fake=True) as running:
        yield running


@pytest.fixture
def client(cluster):
    with stemma.Client(cluster.address, retry_delay_s=0.05) as connected:
        yield connected


def groups(uid="g0"):
    return [stemma.Group(uid, [1, 2, 3], [stemma.Rollout([4, 5], reward=1.0), stemma.Rollout([6], reward=0.0)])]


def update(client, uid="g0", **options):
    return client.update_actor(groups(uid), loss=stemma.grpo(), adam=stemma.adamw(1e-3), old="policy", **options)


def kill_worker(cluster):
    cluster.worker.send_signal(signal.SIGKILL)
    cluster.lose_worker()


def lost(call):
    with pytest.raises(stemma.LineageLostError) as raised:
        call()
    return raised.value


def test_a_worker_that_dies_between_two_calls_is_an_error_that_names_what_is_lost(cluster, client):
    first = update(client)
    assert first.steps[0].step == 1 and first.lineage == client.lineage == cluster.model().lineage
    kill_worker(cluster)
    for worker_is_back in (False, True):
        if worker_is_back:
            cluster.start_worker()
        for call in (lambda: update(client), lambda: client.log_probs(groups()), lambda: client.export("after")):
            error = lost(call)
            assert (error.code, error.reason) == ("ABORTED", "LINEAGE_MISMATCH")
            assert (error.lost_lineage, error.lost_step) == (first.lineage, 1)
            assert (error.lineage, error.step) == (cluster.model().lineage, 0)
            assert f"the weights of lineage {first.lineage} at step 1 were lost" in str(error)
            assert f"step 0 of lineage {error.lineage}" in str(error)
    assert cluster.model().step == 0, "nothing was trained"
    with stemma.Client(cluster.address, retry_delay_s=0.05, follow_lineage=True) as follower:
        again = update(follower)
        assert again.steps[0].step == 1 and again.lineage == error.lineage == follower.lineage
        kill_worker(cluster)
        cluster.start_worker()
        assert update(follower).steps[0].step == 1 and follower.lineage == cluster.model().lineage != again.lineage


def test_a_client_that_only_looked_is_held_to_what_it_saw(cluster, client):
    with stemma.Client(cluster.address) as other:
        update(other)
    assert client.model()["step"] == 1
    kill_worker(cluster)
    cluster.start_worker()
    assert lost(lambda: update(client)).lost_step == 1
    assert client.model()["step"] == 0, "looking is no error"


def test_a_worker_lost_before_the_first_step_loses_nothing(cluster, client):
    lineage = client.model()["lineage"]
    kill_worker(cluster)
    cluster.start_worker()
    assert update(client).lineage == lineage == client.lineage


def test_a_server_that_was_started_again_is_noticed_by_client_and_future(cluster, client):
    first = update(client)
    update(client)
    waiting = update(client, "hang", wait=False)
    wait_for(lambda: waiting.done() or waiting.status["state"] == "PREPARING", "the request to run")
    cluster.kill()
    cluster.restart()
    for call in (waiting.result, lambda: update(client), lambda: client.log_probs(groups()),
                 lambda: client.attach(waiting.request_id).result(), lambda: client.read_log_probs(waiting.request_id)):
        error = lost(call)
        assert error.reason in ("LINEAGE_MISMATCH", "ROLLED_BACK") and error.lost_lineage == first.lineage
        assert error.lost_step == 2, "the journal knows it"
        assert error.lineage == cluster.model().lineage != first.lineage and error.step == 0
    assert cluster.model().step == 0
    with stemma.Client(cluster.address) as fresh:
        assert fresh.attach(waiting.request_id).status["state"] == "ROLLED_BACK"


def test_requests_of_lost_weights_say_so_wherever_they_are_asked_for(cluster, client):
    update(client, request_id="run/done", return_log_probs=True)
    assert client.read_log_probs("run/done")["g0/0"].lineage == client.lineage
    open_request = update(client, "hang", request_id="run/open", wait=False)
    before = client.lineage
    kill_worker(cluster)
    with stemma.Client(cluster.address) as fresh:
        for request_id in ("run/done", "run/open"):
            for call in (lambda: fresh.attach(request_id).result(), lambda: fresh.read_log_probs(request_id)):
                error = lost(call)
                assert (error.reason, error.lost_lineage, error.lost_step) == ("ROLLED_BACK", before, 1)
                assert request_id in str(error) and before in str(error)
        assert lost(lambda: fresh.attach("run/done").result()).message.count("was DONE") == 1
        assert lost(lambda: update(fresh, request_id="run/done", return_log_probs=True)).reason == "ROLLED_BACK"
        listed = {r["request_id"]: r for r in fresh.requests()}
    assert {(r["state"], r["lineage"]) for r in listed.values()} == {("ROLLED_BACK", before)}
    assert lost(open_request.result).reason == "ROLLED_BACK"
    shown = subprocess.run([STEMMA, "requests", "list", "--server", cluster.address], capture_output=True, text=True,
                           check=True).stdout
    assert all("ROLLED_BACK" in line and before in line for line in shown.splitlines()[1:]), shown
    waited = subprocess.run([STEMMA, "requests", "wait", "run/done", "--server", cluster.address], capture_output=True,
                            text=True, timeout=PATIENCE_S)
    assert waited.returncode == 64 + 9 and f"lost_lineage: {before}" in waited.stderr, waited.stderr


@pytest.fixture
def trace(tmp_path):
    """Three requests; the worker is told by the second one's uid what to do."""
    def write(second):
        path = tmp_path / f"{second}.jsonl"
        with stemma.trace.TraceWriter(path) as writer:
            for uid in ("g0", second, "g2"):
                writer.write([group(uid)], **{k: v for k, v in HEADER.items() if k != "request"})
        return path
    return write


def replay(cluster, path, *flags):
    return subprocess.Popen([STEMMA, "replay", str(path), "--server", cluster.address, "--retries", "60", *flags],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_second_line(cluster, process):
    wait_for(lambda: process.poll() is not None or (cluster.model().step == 1 and cluster.state() == "STEPPING"),
             "the second line to run")
    assert process.poll() is None, process.communicate()


def test_a_replay_whose_server_was_killed_and_started_again_stops_and_says_what_is_lost(cluster, trace):
    with replay(cluster, trace("hang")) as process:
        wait_for_second_line(cluster, process)
        before = cluster.model().lineage
        cluster.kill()
        cluster.restart()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 64 + 9, err
    assert len(out.splitlines()) == 2, "a header and the first line"
    assert "ROLLED_BACK" in err and f"began with lineage {before} and saw steps up to 1" in err, err
    assert f"lineage: {cluster.model().lineage}" in err and "--follow-lineage" in err, err
    assert cluster.model().step == 0, "nothing was trained"


def test_a_replay_whose_worker_died_stops_or_follows_when_told(cluster, trace):
    path = trace("crash")
    before = cluster.model().lineage
    with replay(cluster, path) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 64 + 9 and "ROLLED_BACK" in err and f"lost_lineage: {before}" in err, err
    cluster.lose_worker()
    cluster.start_worker()
    between = cluster.model().lineage
    with replay(cluster, path, "--run-id", "again", "--follow-lineage", "-o", "json") as process:
        cluster.lose_worker()
        cluster.start_worker()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    after = cluster.model().lineage
    assert f"going on at step 0 of lineage {after}; steps up to 1 were seen of lineage {between}" in err, err
    assert "1 requests rolled back" in err and len(out.splitlines()) == 2
    assert f'"lineage":"{after}"' in out.splitlines()[1] and cluster.model().step == 1
