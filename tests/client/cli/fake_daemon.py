"""Plays stemma-server and stemma-worker for cli_local_test: copied under both names beside a copy of `stemma`.

In the directory of the executable: server.argv and worker.pid are written; server.mode and worker.mode say how to behave:
serve (default), refuse (exit 2), fail (exit 1), stubborn (ignores SIGTERM)."""

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
    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode(name) == "stubborn" else lambda *_: os._exit(0))


def write_whole(path, text):
    temporary = pathlib.Path(f"{path}.tmp")
    temporary.write_text(text)
    temporary.rename(path)


def serve():
    (HOME / "server.argv").write_text(json.dumps(sys.argv[1:]))
    behave("server")
    sys.path.insert(0, os.environ["CLI_TEST_DIRECTORY"])
    from cli_testing import FakeServer, is_alive, training_pb2

    class Server(FakeServer):
        def GetModel(self, request, context):
            pid = HOME / "worker.pid"
            worker_serves = pid.exists() and is_alive(int(pid.read_text()))
            state = training_pb2.ModelInfo.IDLE if worker_serves else training_pb2.ModelInfo.LOADING
            return training_pb2.ModelInfo(state=state, lineage="l")

    server = Server()
    write_whole(sys.argv[sys.argv.index("--ready-file") + 1], server.address + "\n")
    threading.Event().wait()


def work():
    behave("worker")
    write_whole(HOME / "worker.pid", str(os.getpid()))
    signal.pause()


serve() if pathlib.Path(sys.argv[0]).name == "stemma-server" else work()
