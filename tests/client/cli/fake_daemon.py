"""Plays stemma-server and stemma-worker for cli_local_test: copied under both names beside a copy of `stemma`.

In the directory of the executable: server.argv, worker.argv and worker.pid (of the one that started last; with --device
worker-DEVICE.pid too) are written; server.mode and worker.mode say how to behave: serve (default), refuse (exit 2), fail
(exit 1), damaged (exit 93), stubborn (ignores SIGTERM), dropped (the server says that it does not have the worker, of a
gang the last one, until another one than the first is there), another (it says that it has one, whatever ours does), untaken (it has not
taken the weights of the workers that are ready), never (the worker never says that it is ready). A worker with --device is of a gang: it fails once a peer that it saw is gone."""

import json
import os
import pathlib
import signal
import sys
import threading

HOME = pathlib.Path(sys.argv[0]).parent


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
    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode(name) == "stubborn" else lambda *_: os._exit(0))


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


def is_running(pid):
    return pathlib.Path(f"/proc/{pid}").exists()


def serve():
    (HOME / "server.argv").write_text(json.dumps(sys.argv[1:]))
    behave("server")
    sys.path.insert(0, os.environ["CLI_TEST_DIRECTORY"])
    from cli_testing import FakeServer, is_alive, training_pb2

    class Server(FakeServer):
        seen = {}  # the pids before some were dropped

        def GetServerInfo(self, request, context):
            if mode("server") == "another":  # whatever our worker does
                info = training_pb2.ServerInfo(workers_connected=1)
                info.ranks.add(pid=os.getpid())
                return info
            dropped = self.seen if mode("server") == "dropped" else {}
            if not dropped:
                self.seen = pids()
            info = training_pb2.ServerInfo()
            for rank, (path, pid) in enumerate(pids().items()):
                if is_alive(pid) and (dropped.get(path) != pid or path != max(dropped)):
                    taken = mode("server") != "untaken" and mode("worker") != "never"
                    info.ranks.add(rank=rank, pid=pid, phase="idle" if taken else "loading")
            info.workers_connected = len(info.ranks)
            return info

    server = Server(option("--listen") if "--listen" in sys.argv else "127.0.0.1:0")
    write_whole(option("--ready-file"), f"{server.address}\nworkers 127.0.0.1:1\nops 127.0.0.1:2\n")
    threading.Event().wait()


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
    peers = {}
    while all(pids()[path] == pid and is_running(pid) for path, pid in peers.items()):
        peers.update((path, pid) for path, pid in pids().items() if is_running(pid))
        threading.Event().wait(0.02)
    sys.exit(1)


serve() if pathlib.Path(sys.argv[0]).name == "stemma-server" else work()
