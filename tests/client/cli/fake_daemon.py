"""Plays stemma-server and stemma-worker for cli_local_test: copied under both names beside a copy of `stemma`.

In the directory of the executable: server.argv, worker.argv and worker.pid are written; server.mode and worker.mode say how
to behave: serve (default), refuse (exit 2), fail (exit 1), stubborn (ignores SIGTERM), dropped (the server says that it has
no worker, until another one than the first is there), another (it says that it has one, whatever ours does), never (the
worker never says that it is ready)."""

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


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


def serve():
    (HOME / "server.argv").write_text(json.dumps(sys.argv[1:]))
    behave("server")
    sys.path.insert(0, os.environ["CLI_TEST_DIRECTORY"])
    from cli_testing import FakeServer, is_alive, training_pb2

    class Server(FakeServer):
        first = 0

        def GetServerInfo(self, request, context):
            file = HOME / "worker.pid"
            pid = int(file.read_text()) if file.exists() else 0
            self.first = self.first or pid
            dropped = mode("server") == "dropped" and pid == self.first
            # Another one answers, whatever our worker does.
            connected = mode("server") == "another" or (pid and is_alive(pid) and not dropped)
            return training_pb2.ServerInfo(workers_connected=1 if connected else 0)

    server = Server()
    write_whole(option("--ready-file"), f"{server.address}\nworkers 127.0.0.1:1\nops 127.0.0.1:2\n")
    threading.Event().wait()


def work():
    (HOME / "worker.argv").write_text(json.dumps(sys.argv[1:]))
    behave("worker")
    write_whole(HOME / "worker.pid", str(os.getpid()))
    if mode("worker") != "never":
        write_whole(option("--ready-file"), option("--server") + "\n")
    signal.pause()


serve() if pathlib.Path(sys.argv[0]).name == "stemma-server" else work()
