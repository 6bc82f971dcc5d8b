"""F8: workers that wait for their server, come back to it, and say so."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from e2e.errors.good_request import Request
from e2e.errors.server import BUILD, MODEL, Cluster, wait_for


def test_f8_a_worker_that_finds_no_server_waits_says_so_and_is_taken_when_one_comes():
    with Cluster(fake=True, worker=False, worker_flags=()) as cluster:
        cluster.server.kill()
        cluster.server.wait()
        cluster.start_worker(wait=False)
        wait_for(lambda: f"no server at {cluster.worker_address} yet" in cluster.said(), "the line in the log")
        assert cluster.worker.poll() is None
        cluster.restart_server()
        wait_for(lambda: cluster.state() == "IDLE", "the worker to be taken")
        assert Request().send(cluster.stub).steps_applied == 1


def joined(said):
    """The incarnations that a server took, by its log."""
    return re.findall(r"worker (\w+) \(pid \d+ on \S+\) joins generation", said)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told to stop"])
def test_f8_a_worker_outlives_its_server_and_serves_the_next_one_as_a_new_incarnation(number):
    with Cluster(fake=True, worker_flags=()) as cluster:
        assert Request().send(cluster.stub).steps_applied == 1
        pid, first = cluster.worker.pid, joined(cluster.said())
        cluster.server.send_signal(number)
        cluster.server.wait(60)
        wait_for(lambda: "waits for the server as a new incarnation" in cluster.said(), "the worker to say so")
        said_before = len(cluster.said())
        cluster.restart_server()
        wait_for(lambda: cluster.state() == "IDLE", "the worker to come back")
        assert cluster.worker.poll() is None and cluster.worker.pid == pid
        assert Request().send(cluster.stub).result.steps[0].step == 1
        again = joined(cluster.said()[said_before:])
        assert len(first) == len(again) == 1 and first != again, cluster.said()


def test_f8_a_worker_whose_file_was_replaced_comes_back_as_the_new_one(tmp_path):
    """As an upgrade does it: the build that runs is gone, and on a mesh one that was installed since would be refused."""
    worker = tmp_path / "stemma-worker"
    shutil.copy(BUILD / "bin/stemma-worker", worker)
    with Cluster(worker=False) as cluster:
        process = cluster.worker = subprocess.Popen([worker, "--server", cluster.worker_address, "--worker-secret-file", cluster.secret_file,
                                                     "--die-with-parent", "--threads", "1"], stderr=cluster.log)
        wait_for(lambda: cluster.state() == "IDLE", "the worker")
        shutil.copy(BUILD / "bin/stemma-worker", tmp_path / "new")
        (tmp_path / "new").rename(worker)
        assert os.readlink(f"/proc/{process.pid}/exe").endswith(" (deleted)"), "control"
        cluster.server.kill()
        cluster.server.wait(60)
        cluster.restart_server()
        wait_for(lambda: cluster.state() == "IDLE", "the worker to come back")
        assert os.readlink(f"/proc/{process.pid}/exe") == str(worker) and process.poll() is None
        # One that is being copied would start, and end by a signal.
        (tmp_path / "copied").write_bytes((BUILD / "bin/stemma-worker").read_bytes()[:5_000_000])
        (tmp_path / "copied").chmod(0o755)
        (tmp_path / "copied").rename(worker)
        cluster.server.kill()
        cluster.server.wait(60)
        cluster.restart_server()
        wait_for(lambda: cluster.state() == "IDLE", "the worker to come back")
        assert os.readlink(f"/proc/{process.pid}/exe") == f"{worker} (deleted)" and process.poll() is None
        assert "is no whole program: goes on as the one that it was" in cluster.said()


def test_f8_a_worker_inside_a_wave_comes_back_too():
    with Cluster(fake=True, worker_flags=()) as cluster:
        request = Request(("stuck", "g1"))
        request.header["request"]["wait_ms"] = 0
        request.send(cluster.stub)
        wait_for(lambda: cluster.state() == "STEPPING", "the step to begin")
        cluster.server.kill()
        cluster.server.wait()
        cluster.restart_server()
        wait_for(lambda: cluster.state() == "IDLE", "the worker to come back")
        assert Request().send(cluster.stub).steps_applied == 1


def test_f8_a_second_worker_waits_for_its_place():
    with Cluster(fake=True, worker_flags=()) as cluster:
        first = cluster.worker
        cluster.start_worker()
        wait_for(lambda: "another worker is connected" in cluster.said(), "the second one to be told")
        assert Request().send(cluster.stub).steps_applied == 1
        first.kill()
        first.wait()
        # The server stays IDLE until it sees the end of the first one's connection.
        left = re.compile(rf"\(pid {first.pid} on \S+\) left: its connection ended")
        wait_for(lambda: left.search(cluster.said()), "the server to see the first one's end")
        wait_for(lambda: cluster.state() == "IDLE" and cluster.worker.poll() is None, "the second one to be taken")
        assert Request().send(cluster.stub).steps_applied == 1


def test_f8_what_waiting_cannot_mend_ends_the_worker_with_2_and_its_reason():
    with Cluster(fake=True, worker=False, worker_flags=()) as cluster:
        right = cluster.worker_address
        for address, secret, why in ((right, "0" * 64, "secret"), (cluster.address, None, "--worker-listen")):
            secret = secret or cluster.secret_file.read_text().strip()
            result = subprocess.run([BUILD / "tests/fake_worker", "--server", address], capture_output=True, text=True,
                                    timeout=60, env={**os.environ, "STEMMA_WORKER_SECRET": secret})
            assert result.returncode == 2 and why in result.stderr and secret not in result.stderr, result.stderr
        environment = {k: v for k, v in os.environ.items() if k != "STEMMA_WORKER_SECRET"}
        result = subprocess.run([BUILD / "tests/fake_worker", "--server", right], capture_output=True, text=True, timeout=60,
                                env=environment)
        assert result.returncode == 2 and "--worker-secret-file" in result.stderr, result.stderr


def test_f8_the_server_logs_why_a_worker_left(tmp_path):
    with Cluster(fake=True) as cluster:
        cluster.worker.kill()
        cluster.lose_worker()
        assert re.search(r"worker \w+ \(pid \d+ on \S+\) left: its connection ended", cluster.said()), cluster.said()
    with Cluster(worker=False) as cluster:
        weights = MODEL / "model.safetensors"
        model = tmp_path / "model"
        model.mkdir()
        for file in MODEL.iterdir():
            (model / file.name).write_bytes(file.read_bytes())
        cluster._argv[cluster._argv.index("--model") + 1] = str(model)
        cluster.server.kill()
        cluster.server.wait()
        cluster.restart_server()
        (model / "model.safetensors").write_bytes(weights.read_bytes()[:-8])  # after the server looked at it
        cluster.start_worker(wait=False)
        assert cluster.worker.wait(60) in (1, 2)
        assert re.search(r"worker \w+ \(pid \d+ on \S+\) left: it did not become ready: .*model.safetensors",
                         cluster.said()), cluster.said()
