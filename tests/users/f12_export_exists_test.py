"""F12: an export whose name is taken says so, with the name and what to do."""

import socket
import threading

import grpc
import pytest
import stemma
from e2e.errors.good_request import Request, refusal
from e2e.errors.server import PATIENCE_S, Cluster, wait_for
from stemma import _proto


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        yield running


def refused(call):
    with pytest.raises(stemma.StemmaError) as raised:
        call()
    error = raised.value
    assert (error.code, error.reason) == ("ALREADY_EXISTS", "EXPORT_EXISTS"), error
    return error


def assert_says(error, name):
    assert error.metadata["name"] == name and f'"{name}"' in error.message and f"/exports/{name}" in error.message
    assert "choose another name, or remove it first" in error.message


def test_a_name_that_exists_is_refused_until_it_is_gone(cluster):
    with stemma.Client(cluster.address) as client:
        path = client.export("step-1")
        assert_says(refused(lambda: client.export("step-1")), "step-1")
        assert client.export("step-2") == path.replace("step-1", "step-2")


def test_of_two_exports_of_one_name_in_the_queue_one_is_refused_at_once(cluster):
    long = Request(("g0",))
    long.header["ppo_epochs"] = 4000
    long.header["request"]["wait_ms"] = 0
    long.send(cluster.stub)
    exports = [cluster.stub.ExportWeights.future(_proto.ExportWeightsRequest(name="twice")) for _ in range(2)]
    refused_one = wait_for(lambda: next((e for e in exports if e.done()), None), "a refusal")
    assert not all(e.done() for e in exports), "the other one waits behind the long request"
    error = refusal(refused_one.result)
    assert (error.code, error.reason) == (grpc.StatusCode.ALREADY_EXISTS, "EXPORT_EXISTS")
    assert_says(error, "twice")
    cluster.stub.CancelRequest(_proto.CancelRequestRequest(request_id=long.id))
    written = next(e for e in exports if e is not refused_one).result(PATIENCE_S)
    assert written.path.endswith("/exports/twice") and written.lineage == cluster.model().lineage


class Relay:
    """Passes bytes on to a server. While `mute`, what the server says is dropped, until cut() ends the connections."""

    def __init__(self, target):
        self._target, self._sockets, self.mute = target.split(":"), [], False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            for ends in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source, sink, is_answer):
        try:
            while data := source.recv(1 << 16):
                if not (is_answer and self.mute):
                    sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()

    def cut(self):
        self.mute = False
        ends, self._sockets = self._sockets, []
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self._listener.close()
        self.cut()


@pytest.fixture
def relay(cluster):
    relay = Relay(cluster.address)
    yield relay
    relay.close()


def lose_the_answer(relay, cluster, client, name, dtype=None):
    """Exports by a connection that breaks once the directory is there."""
    relay.mute = True
    path = cluster.root / "data" / "exports" / name
    cutter = threading.Thread(target=lambda: (wait_for(path.exists, "the export"), relay.cut()))
    cutter.start()
    try:
        return client.export(name, dtype)
    finally:
        cutter.join()


def test_an_export_whose_answer_was_lost_is_no_clash(cluster, relay):
    with stemma.Client(relay.address) as client:
        client.model()  # a connection that was never reached is not tried again
        assert lose_the_answer(relay, cluster, client, "lost").endswith("/exports/lost")
        assert_says(refused(lambda: client.export("lost")), "lost")


def test_an_export_of_another_dtype_is_a_clash_also_after_a_loss(cluster, relay):
    with stemma.Client(cluster.address) as other, stemma.Client(relay.address) as client:
        other.export("theirs", "bfloat16")
        client.model()
        assert_says(refused(lambda: lose_the_answer(relay, cluster, client, "theirs", "float32")), "theirs")
