"""A worker that the test plays: the real stream with the real messages, honest or not."""

import hashlib
import hmac
import pathlib
import queue
import secrets
import subprocess
import tempfile
import threading

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from e2e.errors.server import BUILD, wait_for
from e2e.own_loopback import channel_to

PROTO = pathlib.Path(__file__).resolve().parents[3] / "proto"
SESSION = "/stemma.internal.v1.WorkerService/Session"
PATIENCE_S = 60
VERSION = subprocess.run([BUILD / "bin" / "stemma-server", "--version"], check=True, capture_output=True, text=True).stdout.strip()
_POOL = descriptor_pool.DescriptorPool()


def _load():
    with tempfile.NamedTemporaryFile() as out:
        assert protoc.main(["protoc", f"-I{PROTO}", "--include_imports", f"--descriptor_set_out={out.name}",
                            "stemma/internal/v1/worker.proto"]) == 0
        for file in descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(out.name).read_bytes()).file:
            _POOL.AddSerializedFile(file.SerializeToString())


_load()


def message_class(name):
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


WorkerMessage = message_class("stemma.internal.v1.WorkerMessage")
ServerMessage = message_class("stemma.internal.v1.ServerMessage")


def proof_of(secret, *words):
    """A proof of the workers' secret: of "server" and both nonces, or of "worker" and the server's."""
    return hmac.new(secret.encode(), " ".join(words).encode(), hashlib.sha256).hexdigest()


def ask_for_proof(channel, nonce, secret=None):
    """Asks a server for its nonce and proof; with `secret` the proof must be right."""
    call = channel.stream_stream(SESSION, request_serializer=WorkerMessage.SerializeToString,
                                 response_deserializer=ServerMessage.FromString)(iter(()), metadata=[("stemma-nonce", nonce)])
    assert call.code() == grpc.StatusCode.UNAUTHENTICATED, call.details()
    said = dict(call.trailing_metadata())
    if secret is not None:
        assert said["stemma-proof"] == proof_of(secret, "server", nonce, said["stemma-nonce"])
    return said["stemma-nonce"], said["stemma-proof"]


def proven(channel, secret):
    """The metadata that a stream of an honest worker is opened with."""
    nonce, _ = ask_for_proof(channel, secrets.token_hex(32), secret)
    return [("stemma-nonce", nonce), ("stemma-proof", proof_of(secret, "worker", nonce))]


class PlayedWorker:
    """One session. `metadata`: what it opens the stream with, by default a proof of the cluster's secret."""

    def __init__(self, cluster, address=None, metadata=None):
        self._cluster = cluster
        self._outgoing = queue.SimpleQueue()
        self._incoming = queue.SimpleQueue()
        self._channel = channel_to(address or cluster.worker_address,
                                   options=[("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)])
        if metadata is None:
            metadata = proven(self._channel, cluster.secret_file.read_text().strip())
        call = self._channel.stream_stream(SESSION, request_serializer=WorkerMessage.SerializeToString,
                                           response_deserializer=ServerMessage.FromString)
        self._call = call(iter(self._outgoing.get, None), metadata=metadata)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for message in self._call:
                self._incoming.put(message)
        except grpc.RpcError:
            pass
        self._incoming.put(None)

    def send(self, **fields):
        self._outgoing.put(WorkerMessage(**fields))

    def send_message(self, message):
        self._outgoing.put(message)

    def receive(self, kind=None):
        """The next message, of that kind if one is named; None: the stream has ended."""
        while True:
            message = self._incoming.get(timeout=PATIENCE_S)
            if message is None or kind is None or message.WhichOneof("message") == kind:
                return message

    def register(self, **changes):
        self.send(register={"incarnation": "played", "pid": 1, "host": "h", "version": VERSION, "device": "cpu",
                            "memory_bytes": 1 << 34, "memory_free_bytes": 1 << 34, **changes})

    def join(self):
        """Registers and is ready; false: another worker is connected still."""
        self.register()
        if self.receive("configure") is None:
            return False
        self.send(ready={})
        wait_for(lambda: self._cluster.state() in ("IDLE", "STEPPING"), "the worker to be taken")
        return True

    def end(self):
        """Waits for the server to close the stream: (code, what it said)."""
        while self.receive() is not None:
            pass
        return self._call.code(), self._call.details()

    def make_step(self):
        """Votes yes on the next Prepare and reports that it applied it."""
        prepare = self.receive("prepare").prepare
        self.send(vote={"key": prepare.key, "yes": True, "grad_norm_squared": 1.0, "sums": {"loss_tokens": 1}})
        apply = self.receive("apply").apply
        self.send(applied={"key": apply.key, "apply_s": 0.01})

    def close(self):
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
