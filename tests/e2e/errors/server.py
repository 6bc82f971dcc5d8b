"""A stemma-server and a worker as real processes on loopback, for tests: start, kill, restart, and what they said."""

import os
import pathlib
import secrets
import signal
import subprocess
import tempfile
import time

from e2e.own_loopback import HOST, channel_to
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


def write_secret(path):
    """A secret that admits workers, in a file as the programs want it."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32) + "\n")


def read_ready_file(path):
    """The addresses of clients, workers and ops."""
    clients, workers, ops = path.read_text().splitlines()[:3]
    assert workers.startswith("workers ") and ops.startswith("ops ")
    return clients, workers.split()[1], ops.split()[1]


def start(folder, *flags, data=None, **options):
    """Runs a server that is not to serve, with its data and secret in that folder: (exit code, what it said)."""
    if not os.path.lexists(folder / "secret"):
        write_secret(folder / "secret")
    argv = [BUILD / "bin/stemma-server", "--data", folder / "data" if data is None else data, "--worker-secret-file",
            folder / "secret", *flags]
    result = subprocess.run(list(map(str, argv)), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            timeout=PATIENCE_S, **options)
    return result.returncode, result.stderr


def word(message, field):
    """The name of an enum's value."""
    return message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number[getattr(message, field)].name


class Cluster:
    """`fake`: the worker that hangs and dies on demand (tests/testing/fake_worker), else stemma-worker. `worker`: whether
    one is started; else the test plays one (played_worker.py) or starts it later. `data`: the data directory.
    `rlimits`: of the server, as prlimit's options. `failpoints`: those whose server it runs (failpoints.py). `credentials`: of
    the test's own channel, where the flags have the server speak TLS."""

    def __init__(self, fake=False, config=None, flags=(), model=MODEL, worker=True, rlimits=(), worker_flags=("--once",),
                 data=None, failpoints=None, credentials=None):
        self.fake, self.worker_flags = fake, worker_flags
        self._directory = tempfile.TemporaryDirectory(prefix="stemma-e2e-")
        self.root = pathlib.Path(self._directory.name)
        self.secret_file = self.root / "worker-secret"
        write_secret(self.secret_file)
        programs = BUILD / "bin" if failpoints is None else failpoints.stemma.parent
        self._environment = None if failpoints is None else failpoints.environment
        self._argv = [*(["prlimit", *rlimits] if rlimits else []), str(programs / "stemma-server"),
                      "--model", str(model), "--data", str(data or self.root / "data"), "--ready-file", str(self.root / "ready"), "--worker-secret-file", str(self.secret_file),
                      "--die-with-parent", *flags]
        if fake:  # it has no weights that could be computed again
            self._argv += ["--durability", "rewind"]
        if config is not None:
            (self.root / "run.yaml").write_text(config)
            self._argv += ["--config", str(self.root / "run.yaml")]
        self.log = open(self.root / "log", "w")
        self.server, self.address = None, None
        self._start_server()
        self.channel = channel_to(self.address, options=[("grpc.max_send_message_length", -1)], credentials=credentials)
        self.stub = TrainingStub(self.channel)
        self.worker = None
        if worker:
            self.start_worker()

    def _start_server(self):
        argv = self._argv
        if self.address:
            argv = [*argv, "--listen", self.address, "--worker-listen", self.worker_address]
        elif "--listen" not in argv:
            argv = [*argv, "--listen", f"{HOST}:0", "--worker-listen", f"{HOST}:0"]
        self.server = subprocess.Popen(argv, stderr=self.log, env=self._environment)
        self.address, self.worker_address, self.ops_address = wait_for(self._addresses, "the ready file")

    def kill(self):
        """Ends server and worker without a word."""
        for process in (self.server, self.worker):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def restart(self):
        """Another server on the addresses of the one that has ended, with a worker of its own."""
        self.restart_server()
        self.start_worker()

    def restart_server(self):
        (self.root / "ready").unlink(missing_ok=True)
        self._start_server()

    def _addresses(self):
        assert self.server.poll() is None, self.said()
        path = self.root / "ready"
        return read_ready_file(path) if path.exists() else None

    def start_worker(self, wait=True):
        binary = BUILD / ("tests/fake_worker" if self.fake else "bin/stemma-worker")
        self.worker = subprocess.Popen([str(binary), "--server", self.worker_address, "--worker-secret-file",
                                        str(self.secret_file), *self.worker_flags, "--die-with-parent", "--threads", "1"],
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
        return word(self.model(), "state")

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
