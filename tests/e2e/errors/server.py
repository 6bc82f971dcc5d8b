"""A stemma-server and a worker as real processes on loopback, for tests: start, kill, restart, and what they said."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time

import grpc

from stemma import _proto
from stemma._stub import TrainingStub

BUILD = pathlib.Path(os.environ["STEMMA_BUILD_DIR"])
MODEL = pathlib.Path(__file__).resolve().parents[2] / "golden" / "llama_vanilla" / "model"
PATIENCE_S = 60


def wait_for(condition, what):
    """The condition's first true value; time only bounds the failure."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {PATIENCE_S} s for {what}")


class Cluster:
    """`fake`: the worker that hangs and dies on demand (tests/testing/fake_worker), else stemma-worker. `worker`: whether
    one is started. `rlimits`: of the server, as
    prlimit's options."""

    def __init__(self, fake=False, config=None, flags=(), model=MODEL, worker=True, rlimits=()):
        self.fake = fake
        self._directory = tempfile.TemporaryDirectory(prefix="stemma-e2e-")
        self.root = pathlib.Path(self._directory.name)
        self._argv = [*(["prlimit", *rlimits] if rlimits else []), str(BUILD / "bin/stemma-server"),
                      "--model", str(model), "--data", str(self.root / "data"),
                      "--ready-file", str(self.root / "ready"), "--die-with-parent", *flags]
        if config is not None:
            (self.root / "run.yaml").write_text(config)
            self._argv += ["--config", str(self.root / "run.yaml")]
        self.log = open(self.root / "log", "w")
        self.server, self.address = None, None
        self._start_server()
        self.channel = grpc.insecure_channel(self.address, options=[("grpc.max_send_message_length", -1)])
        self.stub = TrainingStub(self.channel)
        self.worker = None
        if worker:
            self.start_worker()

    def _start_server(self):
        argv = self._argv + (["--listen", self.address] if self.address else [])
        self.server = subprocess.Popen(argv, stderr=self.log)
        self.address = wait_for(self._address, "the ready file")

    def kill(self):
        """Ends server and worker without a word."""
        for process in (self.server, self.worker):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def restart(self):
        """Another server on the address of the killed one, with a worker of its own."""
        (self.root / "ready").unlink()
        self._start_server()
        self.start_worker()

    def _address(self):
        assert self.server.poll() is None, self.said()
        path = self.root / "ready"
        return path.read_text().strip() if path.exists() else ""

    def start_worker(self, wait=True):
        binary = BUILD / ("tests/fake_worker" if self.fake else "bin/stemma-worker")
        self.worker = subprocess.Popen([str(binary), "--server", self.address, "--die-with-parent", "--threads", "1"],
                                       stderr=self.log)
        if wait:
            wait_for(lambda: self.state() in ("IDLE", "STEPPING"), "the worker to load the model")

    def lose_worker(self):
        """Waits for a worker that was killed, or killed itself, and for the server to see it."""
        self.worker.wait(PATIENCE_S)
        wait_for(lambda: self.state() == "RECOVERING", "the server to see the worker's end")

    def model(self):
        return self.stub.GetModel(_proto.GetModelRequest())

    def state(self):
        model = self.model()
        return model.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number[model.state].name

    def said(self):
        self.log.flush()
        return (self.root / "log").read_text()

    def close(self):
        self.channel.close()
        for process in (self.server, self.worker):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        self.log.close()
        self._directory.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
