"""A host of a gang is cut off: two workers on hosts of their own, the link of one taken down at a named place and put up
again later. The client hears the truth in time, both processes of the generation end, and the gang serves again."""

import os
import random
import subprocess
import threading
import time

import pytest

from e2e.errors.server import BUILD, read_ready_file, wait_for, write_secret
from e2e.gang import network
from e2e.gang.faulted_gang import LOST_AFTER_S, REWIND, Server
from e2e.gang.small_groups import make_model

SEED = int(os.environ.get("STEMMA_FAULTS_SEED", "1"))
PLACES = [("update", "pass.prefix_forward"), ("update", "pass.suffix"), ("update", "pass.prefix_backward"),
          ("update", "prepare.before_agree"), ("update", "prepare.in_reduce"), ("update", "prepare.before_vote"),
          ("update", "apply.before_step"), ("update", "apply.in_gather"), ("export", "export.written"),
          ("log_probs", "pass.suffix")]


def choose():
    """Every place for both hosts, or two that are drawn."""
    cases = [(*place, host) for place in PLACES for host in range(2)]
    return cases if os.environ.get("STEMMA_FAULTS_ALL") == "1" else random.Random(SEED).sample(cases, 2)


class HostsGang(Server):
    """A server here, and a worker on each host: rank i on host i, by the order of their devices. One that ends is started
    again, as under Kubernetes."""

    def __init__(self, folder, hosts):
        make_model(folder / "model")
        self.hosts = hosts
        self._armed, self._ready, self._secret = folder / "armed", folder / "ready", folder / "secret"
        self._armed.mkdir()
        write_secret(self._secret)
        self._log = open(folder / "log", "w")
        self.log = folder / "log"
        self._server = subprocess.Popen(
            [BUILD / "bin/stemma-server", "--model", folder / "model", "--data", folder / "data", "--dtype", "fp64",
             *REWIND, "--mesh", "dp=2", "--split-groups", "on", "--threads", "1", "--worker-lost-after", str(LOST_AFTER_S), "--listen", "127.0.0.1:0", "--worker-listen",
             "0.0.0.0:0", "--ops-listen", "127.0.0.1:0", "--insecure", "--ready-file", self._ready, "--worker-secret-file",
             self._secret], stderr=self._log)
        wait_for(lambda: self._ready.exists() or self._server.poll() is not None, "the server's ready file")
        address, workers, _ = read_ready_file(self._ready)
        super().__init__(address)
        self._port = workers.rsplit(":", 1)[1]
        self._ended = False
        self._workers = [self._start_worker(host) for host in range(2)]
        self._keeper = threading.Thread(target=self._keep_workers, daemon=True)
        self._keeper.start()

    def _start_worker(self, host):
        argv = [BUILD / "tests/failpoint_worker", "--server", f"{self.hosts.gateway(host)}:{self._port}", "--worker-secret-file",
                self._secret, "--threads", "1", "--device", f"cpu:{host}", "--once"]
        return subprocess.Popen(self.hosts.command(host, *argv), stderr=self._log,
                                env={**os.environ, "STEMMA_FAILPOINTS": str(self._armed)})

    def hold(self, place, rank):
        (self._armed / f"{place}@{rank}").write_text("hold")
        return self._armed / f"{place}@{rank}.held"

    def _keep_workers(self):
        while not self._ended:
            for host, worker in enumerate(self._workers):
                if worker.poll() is not None:
                    self._workers[host] = self._start_worker(host)
            time.sleep(0.2)

    def stop(self):
        self._ended = True
        self._keeper.join()
        for process in (self._server, *self._workers):
            process.kill()
            process.wait()
        self._log.close()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    try:
        hosts = network.Network(2, tmp_path_factory.mktemp("hosts"))
    except network.Unavailable as why:
        pytest.skip(f"no hosts: {why}")
    yield hosts
    hosts.close()


@pytest.fixture(scope="module")
def gang(hosts, tmp_path_factory):
    gang = HostsGang(tmp_path_factory.mktemp("cut"), hosts)
    try:
        wait_for(gang.serves, "gang that serves")
        gang.learn()
        yield gang
    finally:
        gang.stop()


@pytest.mark.parametrize("operation,place,host", choose())
def test_a_host_is_cut_off_at_a_place(gang, operation, place, host):
    gang.advance(f"before-{time.monotonic_ns()}")
    before = gang.info()
    held = gang.hold(place, rank=host)
    struck = []

    def cut():
        wait_for(held.exists, place)
        gang.hosts.cut(host)
        struck.append(time.monotonic())
        held.unlink()

    cutter = threading.Thread(target=cut)
    cutter.start()
    gang.operate_in_fault(operation, f"cut-{time.monotonic_ns()}", lambda: cutter.join() or struck[0])
    cutter.join()
    gang.hosts.connect(host)
    gang.await_generation_after(before)
    gang.check_weights()
