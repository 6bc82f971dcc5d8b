"""A server that the test plays to real workers: the real stream with the real messages."""

import concurrent.futures
import os
import pathlib
import queue
import signal
import subprocess
import tempfile
import time

import grpc

from e2e.errors.played_worker import ServerMessage, WorkerMessage, proof_of
from e2e.errors.server import write_secret

BUILD = pathlib.Path(os.environ["STEMMA_BUILD_DIR"])
PATIENCE_S = 60
STREAMS_MAX = 8
NONCE = "1" * 64


class Session:
    """The stream of one worker."""

    def __init__(self):
        self._outgoing, self._incoming = queue.SimpleQueue(), queue.SimpleQueue()
        self._refusal = None

    def _run(self, messages, context):
        """Yields what is sent until the session is closed; what comes is read beside it, to its end: None."""
        def read():
            try:
                for message in messages:
                    if not message.HasField("heartbeat"):
                        self._incoming.put(message)
            except grpc.RpcError:
                pass
            self._incoming.put(None)
            self._outgoing.put(None)
        self._readers.submit(read)
        yield from iter(self._outgoing.get, None)
        if self._refusal:
            context.abort(*self._refusal)

    def send(self, **fields):
        self._outgoing.put(ServerMessage(**fields))

    def close(self, code=None, text=""):
        """Ends it, with an error where there is a code."""
        self._refusal = code and (code, text)
        self._outgoing.put(None)

    def next(self):
        """The next message that is no heartbeat; None: the worker has ended the stream."""
        return self._incoming.get(timeout=PATIENCE_S)

    def expect(self, field):
        message = self.next()
        assert message is not None and message.HasField(field), f"{field}: {message}"
        return getattr(message, field)


class PlayedServer:
    def __enter__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="stemma-played-")
        self.root = pathlib.Path(self._directory.name)
        write_secret(self.root / "secret")
        self._sessions, self._processes = queue.SimpleQueue(), []
        self._threads = concurrent.futures.ThreadPoolExecutor(2 * STREAMS_MAX)
        self._server = grpc.server(self._threads)
        self._server.add_generic_rpc_handlers([self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *_):
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # what it runs the worker in, too
            process.communicate()
        self._server.stop(0).wait()
        self._directory.cleanup()

    def service(self, _):
        return grpc.stream_stream_rpc_method_handler(self._serve, request_deserializer=WorkerMessage.FromString,
                                                     response_serializer=ServerMessage.SerializeToString)

    def _serve(self, messages, context):
        """A worker asks for this server's proof before it opens its session."""
        sent, secret = dict(context.invocation_metadata()), (self.root / "secret").read_text().strip()
        if "stemma-proof" not in sent:
            proof = proof_of(secret, "server", sent["stemma-nonce"], NONCE)
            context.set_trailing_metadata([("stemma-nonce", NONCE), ("stemma-proof", proof)])
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "prove that you have the workers' secret")
        assert (sent["stemma-nonce"], sent["stemma-proof"]) == (NONCE, proof_of(secret, "worker", NONCE))
        return self._session(messages, context)

    def _session(self, messages, context):
        session = Session()
        session._readers = self._threads
        self._sessions.put(session)
        return session._run(messages, context)

    def start(self, *flags, **options):
        """(process, session, its Register) of a worker; options of begin."""
        return self.begin(*flags, **options), *self.next_session()

    def begin(self, *flags, program="bin/stemma-worker", env=None, once=True, within=(), address=None):
        """A worker that ends with its session, or starts itself anew. `within`: the command that runs it. `address`: what
        it knows this server by."""
        process = subprocess.Popen(
            [*within, BUILD / program, "--server", address or self.address, "--worker-secret-file", self.root / "secret",
             *(["--once"] if once else []), "--die-with-parent", *flags],
            stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}, start_new_session=True)
        self._processes.append(process)
        return process

    def next_session(self):
        """(session, its Register) of the worker that comes next."""
        session = self._sessions.get(timeout=PATIENCE_S)
        return session, session.expect("register")

    def no_session_within(self, seconds):
        try:
            self._sessions.get(timeout=seconds)
        except queue.Empty:
            return True
        return False


def ended(process, within_s):
    """(exit code, what it said) of a process that ends by itself in that time."""
    start = time.monotonic()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - start < within_s, said
    return process.returncode, said
