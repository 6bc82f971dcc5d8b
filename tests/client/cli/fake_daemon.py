"""Plays stemma-server and stemma-worker for the tests of `stemma local`: copied under both names beside a copy of `stemma`.

In the directory of the executable: server.argv, worker.argv and worker.pid (of the one that started last; with --device
worker-DEVICE.pid too) are written; server.mode and worker.mode say how to behave: serve (default), refuse (exit 2), fail
(exit 1), damaged (exit 93), stubborn (ignores SIGTERM), hasty (exit 1 at SIGTERM), draining (exit 0 a moment after a
SIGTERM; server.stops has a line for each), slow (does not serve), dropped (the server says that it does not have the
worker, of a gang the last one, until another one than the first is there), another (it says that it has one, whatever ours
does), untaken (it has not taken the weights of the workers that are ready), never (the worker never says that it is ready).

A worker with --device is of a gang. As with the real ones, it is for the server to say which workers are one generation:
once one of those that it saw alive is gone, it has none of the others any more, and they fail (it writes PID.lost)."""

import json
import os
import pathlib
import signal
import sys
import threading
import time

HOME = pathlib.Path(sys.argv[0]).parent
LOOK_S = 0.02
DRAIN_S = 0.5


def mode(name):
    path = HOME / f"{name}.mode"
    return path.read_text() if path.exists() else "serve"


def behave(name):
    if mode(name) == "refuse":
        print(f"{name}: model: no such directory", file=sys.stderr)
        sys.exit(2)
    if mode(name) == "fail":
        sys.exit(1)
    if mode(name) == "damaged":
        sys.exit(93)
    if mode(name) == "slow":
        time.sleep(60)
    if mode(name) == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif mode(name) == "draining":
        signal.signal(signal.SIGTERM, drain)
    elif name == "server":  # a worker handles no signal
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1 if mode(name) == "hasty" else 0))


def drain(*_):
    with open(HOME / "server.stops", "a") as file:
        file.write("told\n")
    threading.Timer(DRAIN_S, os._exit, [0]).start()


def write_whole(path, text):
    temporary = pathlib.Path(f"{path}.{os.getpid()}.tmp")  # the workers of a gang write the same file
    temporary.write_text(text)
    temporary.rename(path)


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def pids():
    """Reads the pid of each device's last worker."""
    files = sorted(HOME.glob("worker-*.pid")) or list(HOME.glob("worker.pid"))
    return {path: int(path.read_text()) for path in files}


class Generation:
    """The workers that the server has."""

    def __init__(self, is_alive):
        self.is_alive, self.seen, self.lost = is_alive, set(), set()
        self.lock = threading.Lock()

    def look(self):
        """Returns {file: pid} of those that it has now."""
        with self.lock:
            if not all(map(self.is_alive, self.seen)):
                for pid in self.seen:
                    write_whole(HOME / f"{pid}.lost", "")
                self.lost |= self.seen
                self.seen = set()
            present = {path: pid for path, pid in pids().items() if self.is_alive(pid) and pid not in self.lost}
            self.seen |= set(present.values())
            return present


def serve():
    (HOME / "server.argv").write_text(json.dumps(sys.argv[1:]))
    behave("server")
    sys.path.insert(0, os.environ["CLI_TEST_DIRECTORY"])
    from cli_testing import FakeServer, is_alive, training_pb2

    generation = Generation(is_alive)

    class Server(FakeServer):
        before_drop = {}

        def GetServerInfo(self, request, context):
            if mode("server") == "another":  # whatever our worker does
                info = training_pb2.ServerInfo(workers_connected=1)
                info.ranks.add(pid=os.getpid())
                return info
            workers = generation.look()
            dropped = self.before_drop if mode("server") == "dropped" else {}
            if not dropped:
                self.before_drop = workers
            info = training_pb2.ServerInfo()
            for rank, (path, pid) in enumerate(workers.items()):
                if dropped.get(path) != pid or path != max(dropped):
                    taken = mode("server") != "untaken" and mode("worker") != "never"
                    info.ranks.add(rank=rank, pid=pid, phase="idle" if taken else "loading")
            info.workers_connected = len(info.ranks)
            return info

    server = Server(option("--listen") if "--listen" in sys.argv else "127.0.0.1:0")
    metrics = "metrics 127.0.0.1:3\n" if "--metrics-listen" in sys.argv else ""
    write_whole(option("--ready-file"), f"{server.address}\nworkers 127.0.0.1:1\nops 127.0.0.1:2\n{metrics}")
    while True:
        generation.look()
        time.sleep(LOOK_S)


def work():
    (HOME / "worker.argv").write_text(json.dumps(sys.argv[1:]))
    behave("worker")
    write_whole(HOME / "worker.pid", str(os.getpid()))
    if "--device" in sys.argv:
        write_whole(HOME / f"worker-{option('--device')}.pid", str(os.getpid()))
    if mode("worker") != "never":
        write_whole(option("--ready-file"), option("--server") + "\n")
    if "--device" not in sys.argv:
        signal.pause()
    while not (HOME / f"{os.getpid()}.lost").exists():
        time.sleep(LOOK_S)
    sys.exit(1)


serve() if pathlib.Path(sys.argv[0]).name == "stemma-server" else work()
