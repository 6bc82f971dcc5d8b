"""A3: what the workers' secret is worth where others stand at the server's address, or hear what is said."""

import subprocess
from concurrent import futures

import grpc
import pytest

from e2e.errors.played_worker import PlayedWorker, ServerMessage, ask_for_proof, proof_of, proven
from e2e.errors.server import BUILD, Cluster
from e2e.own_loopback import channel_to


@pytest.fixture(scope="module")
def cluster():
    with Cluster(config="durability: rewind\n", worker=False) as running:
        yield running


def end_of(worker):
    with worker:
        return worker.end()


def test_a3_a_proof_is_good_once(cluster):
    """Who hears a worker's proof cannot come in by it; and of a server's a stranger learns nothing."""
    secret = cluster.secret_file.read_text().strip()
    with channel_to(cluster.worker_address) as channel:
        metadata = proven(channel, secret)
        nonces = {ask_for_proof(channel, "0" * 64)[0] for _ in range(50)}
    assert len(nonces) == 50
    with PlayedWorker(cluster, metadata=metadata) as first:
        assert first.join()
        assert end_of(PlayedWorker(cluster, metadata=metadata)) == (grpc.StatusCode.UNAUTHENTICATED, "its proof was used before")
    assert end_of(PlayedWorker(cluster, metadata=metadata))[0] == grpc.StatusCode.UNAUTHENTICATED, "nor when the first is gone"


class FalseServer:
    """Takes workers' streams at an address, and plays a server without their secret: `proof` of (worker's nonce, its own)."""

    def __init__(self, proof):
        self.heard, self._proof = [], proof
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {"Session": grpc.stream_stream_rpc_method_handler(self._session, lambda raw: raw, lambda raw: raw)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("stemma.internal.v1.WorkerService", handlers),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _session(self, messages, context):
        sent = dict(context.invocation_metadata())
        self.heard.append(sent)
        if self._proof is None:  # obeys at once
            yield ServerMessage(configure={}).SerializeToString()
            self.heard.extend(messages)
            return
        nonce = "1" * 64
        context.set_trailing_metadata([("stemma-nonce", nonce), ("stemma-proof", self._proof(sent.get("stemma-nonce", ""), nonce))])
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "prove it")

    def stop(self):
        self._server.stop(0)


@pytest.mark.parametrize("proof", [None, lambda worker, own: "", lambda worker, own: worker, lambda worker, own: "0" * 64,
                                   lambda worker, own: proof_of("another secret of 32 characters..", "server", worker, own)],
                         ids=["configures", "none", "echo", "zeros", "another"])
def test_a3_a_worker_tells_a_false_server_nothing_and_does_not_obey_it(cluster, proof):
    secret = cluster.secret_file.read_text().strip()
    false = FalseServer(proof)
    try:
        worker = subprocess.run([BUILD / "bin" / "stemma-worker", "--server", false.address, "--worker-secret-file",
                                 cluster.secret_file, "--once"],
                                capture_output=True, text=True, timeout=120, check=False)
    finally:
        false.stop()
    said = worker.stdout + worker.stderr
    assert worker.returncode != 0 and false.address in said, said
    if proof is not None:
        assert "it has not this worker's secret" in said, said
    heard = str(false.heard)
    assert secret not in heard and "stemma-proof" not in heard and "authorization" not in heard, heard
