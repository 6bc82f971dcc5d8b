"""Whatever dies, nothing is lost and nothing is done twice: with kept requests (durability: replay) a run that is struck by
kill -9 of its server and its workers ends with the weights of a run that nobody disturbed, byte by byte.

STEMMA_FAULTS_SEED and STEMMA_FAULTS_COUNT (kills) choose the cases; a failure prints its seed."""

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import threading
import time

import pytest

import stemma
from e2e.errors.server import wait_for
from e2e.gang.small_groups import make_model
from e2e.recovery.durable_run import REQUESTS, STEPS_OF_REQUEST, DurableRun, facts, send, weights_after

SEED = int(os.environ.get("STEMMA_FAULTS_SEED", "1"))
COUNT = int(os.environ.get("STEMMA_FAULTS_COUNT", "6"))
RESTARTS_MAX = 3  # of `stemma local`, in a row, without a gang that served between them


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def undisturbed(model, tmp_path_factory):
    """ranks -> (weights after the fixed run, what each of its requests answered)."""
    known = {}

    def of(ranks):
        if ranks not in known:
            with DurableRun(model, tmp_path_factory.mktemp(f"undisturbed-{ranks}"), ranks) as run, run.client() as client:
                answers = [facts(send(client, number, ranks)) for number in range(REQUESTS)]
                known[ranks] = weights_after(run, "end"), answers
        return known[ranks]
    return of


class Killer(threading.Thread):
    """Kills processes of the run again and again, each time once all its ranks have the model: it serves then, or computes
    steps again."""

    def __init__(self, run, seed, kills):
        super().__init__(daemon=True)
        self._run, self._random, self._kills = run, random.Random(seed), kills
        self._stopped = threading.Event()
        self.struck = []

    def run(self):
        strikes = 0
        while len(self.struck) < self._kills and not self._stopped.is_set():
            wait_for(lambda: self._stopped.is_set() or self._run.times_served() > strikes, "gang to strike")
            strikes += 1
            time.sleep(self._random.uniform(0, 0.3))
            children = sorted(self._run.children().items())
            servers = [pid for pid, name in children if name == "stemma-server"]
            workers = [pid for pid, name in children if name == "stemma-worker"]
            for victims in self._random.choice([(servers,), (workers,), (servers, workers)]):
                if victims:
                    self._kill(self._random.choice(victims))

    def _kill(self, pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.struck.append(pid)

    def stop(self):
        self._stopped.set()
        self.join()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_is_struck_ends_with_the_weights_of_one_that_is_not(model, undisturbed, tmp_path, ranks):
    print(f"STEMMA_FAULTS_SEED={SEED} STEMMA_FAULTS_COUNT={COUNT}")
    weights, answers = undisturbed(ranks)
    with DurableRun(model, tmp_path / "run", ranks) as run, run.client() as client:
        killer = Killer(run, SEED, COUNT)
        killer.start()
        try:
            sent = 0
            while sent < REQUESTS or len(killer.struck) < COUNT:
                number = sent % REQUESTS  # those that were sent before, again: nothing may happen twice
                steps, log_probs = facts(send(client, number, ranks))
                assert steps == answers[number][0]
                assert log_probs in ({}, answers[number][1])
                sent += 1
        finally:
            killer.stop()
        assert client.model()["step"] == REQUESTS * STEPS_OF_REQUEST
        assert weights_after(run, "end") == weights
        assert len(killer.struck) >= COUNT


@pytest.mark.parametrize("who", ["stemma-worker", "stemma-server"])
def test_what_dies_as_soon_as_it_serves_is_started_again_however_often(model, tmp_path, who):
    with DurableRun(model, tmp_path / "run") as run, run.client() as client:
        known = set()
        for _ in range(2 * RESTARTS_MAX):
            pid = wait_for(lambda: next((pid for pid, name in run.children().items() if name == who and pid not in known), None),
                           f"a new {who}")
            while client.model()["state"] != "IDLE":  # asked without a pause: `stemma local` looks every 0.1 s
                pass
            os.kill(pid, signal.SIGKILL)
            known.add(pid)
        send(client, 0)
        assert run.process.poll() is None


def test_a_run_goes_on_after_an_end_and_a_start(model, undisturbed, tmp_path):
    weights, answers = undisturbed(1)
    half = REQUESTS // 2
    with DurableRun(model, tmp_path / "run") as run, run.client() as client:
        for number in range(half):
            send(client, number)
        lineage = client.model()["lineage"]
    with DurableRun(model, tmp_path / "run") as run, run.client() as client:
        for number in range(half, REQUESTS):
            assert facts(send(client, number)) == answers[number]
        assert client.model()["lineage"] == lineage
        assert weights_after(run, "end") == weights


def test_another_model_is_refused(model, tmp_path):
    with DurableRun(model, tmp_path / "run") as run, run.client() as client:
        send(client, 0)
        run.kill()  # one that is stopped saves a checkpoint, and needs the model directory's weights no more
    other = tmp_path / "other"
    stem = (model / "model.safetensors").read_bytes()
    other.mkdir()
    for file in model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "model.safetensors").write_bytes(stem[:-1] + bytes([stem[-1] ^ 1]))
    with pytest.raises(AssertionError, match="other weights than those that lineage") as refused:
        DurableRun(other, tmp_path / "run")
    assert "ended with exit code 2" in str(refused.value), "someone has to change something: starting again does not help"


def test_another_config_is_refused_by_the_field(model, tmp_path):
    """The same weights, which mean something else."""
    with DurableRun(model, tmp_path / "run") as run, run.client() as client:
        send(client, 0)
        run.kill()
    other = tmp_path / "other"
    shutil.copytree(model, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.25}))
    with pytest.raises(AssertionError, match="config.json of the model directory has another rms_norm_eps than when lineage") as refused:
        DurableRun(other, tmp_path / "run")
    assert "ended with exit code 2" in str(refused.value)
    (other / "config.json").write_text(json.dumps({**config, "mine": 1}))
    DurableRun(other, tmp_path / "run").close()


def test_a_model_that_is_not_the_checkpoint_s_ends_the_start_at_once(model, tmp_path):
    """A server that is stopped saves a checkpoint, with which recovery begins: no worker could load it."""
    with DurableRun(model, tmp_path / "run") as run, run.client() as client:
        send(client, 0)
    other = tmp_path / "other"
    shutil.copytree(model, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.25}))
    with pytest.raises(AssertionError, match=r"than the server's --model: they differ in rms_norm_eps") as refused:
        DurableRun(other, tmp_path / "run")
    assert "ended with exit code 2" in str(refused.value) and "a worker" not in str(refused.value).rpartition("generation")[0]
    (other / "config.json").write_text(json.dumps({**config, "mine": 1}))
    with DurableRun(other, tmp_path / "run") as run:
        assert "the weights are those of checkpoint step-" in run.log.read_text()


def test_another_dtype_is_refused_by_its_name(model, tmp_path):
    """The same directory, and other bits: the steps that are to be computed again began in fp32."""
    with DurableRun(model, tmp_path / "run") as run, run.client() as client:
        send(client, 0)
        run.kill()
    with pytest.raises(AssertionError, match="began in fp32, and this run is in bf16: start it with --dtype fp32") as refused:
        DurableRun(model, tmp_path / "run", dtype="bf16")
    assert "ended with exit code 2" in str(refused.value)


def bodies_in(database):
    """The bodies of a journal's rows that lie in the file in one piece, of a database that nobody has open."""
    copy = database.parent.with_name("copy-of-the-journal")
    shutil.copytree(database.parent, copy)
    with contextlib.closing(sqlite3.connect(copy / database.name)) as connection:
        bodies = [body for body, in connection.execute("SELECT body FROM rows")]
    shutil.rmtree(copy)
    content = database.read_bytes()
    return [body for body in bodies if len(body) >= 16 and content.count(body) == 1]


@pytest.mark.parametrize("damaged", ["journal/journal.db", "spool"])
def test_a_changed_byte_is_named_and_nothing_goes_on_without_it(model, tmp_path, damaged):
    with DurableRun(model, tmp_path / "run") as run, run.client() as client:
        send(client, 0)
        send(client, 1)
        run.kill()
    path = tmp_path / "run/data" / damaged
    if path.is_dir():
        path = sorted(path.iterdir())[0]
    content = bytearray(path.read_bytes())
    # A database has pages that nothing is in: a byte of a row.
    row = bytes(content) if damaged == "spool" else random.Random(SEED).choice(bodies_in(path))
    at = content.index(row) + random.Random(SEED).randrange(len(row) // 4, len(row))
    content[at] ^= 1
    path.write_bytes(content)
    print(f"STEMMA_FAULTS_SEED={SEED}, byte {at} of {path}")
    if damaged == "spool":
        with DurableRun(model, tmp_path / "run") as run, run.client(retries=0) as client:
            wait_for(lambda: client.model()["state"] == "UNUSABLE", "server that stops")
            assert path.name in client.model()["state_reason"]
            with pytest.raises(stemma.StemmaError, match=path.name):
                send(client, 2)
    else:
        with pytest.raises(AssertionError, match="journal.db"):
            DurableRun(model, tmp_path / "run")
