"""F8: a client without a server says so soon, in words; one that reached its server survives that it starts again."""

import re
import socket
import threading
import time

import grpc
import pytest
import stemma
from client.python.fake_server import FakeServer
from e2e.errors.server import Cluster
from e2e.own_loopback import free_address, refused_address
from stemma import _proto

RAW = re.compile(r"ipv4:|ipv6:|last error|failed to connect to all addresses|StatusCode|RPC that terminated|grpc(?!_proxy)", re.I)
WAIT_MAX_S = 10  # a machine under load; the client's own bound is asserted by its number below
Model = _proto.message_class("stemma.v1.ModelInfo")


def error_of(call):
    begin = time.monotonic()
    with pytest.raises(stemma.StemmaError) as error:
        call()
    assert time.monotonic() - begin < WAIT_MAX_S
    assert error.value.code == "UNAVAILABLE" and not RAW.search(str(error.value)), error.value
    assert "\n" not in str(error.value)
    return str(error.value)


def test_f8_the_default_wait_for_a_first_connection_is_below_two_seconds():
    import inspect

    from stemma import _connection

    wait_s = inspect.signature(stemma.Client.__init__).parameters["connect_timeout_s"].default
    assert wait_s + _connection._PROBE_S < 2


@pytest.mark.parametrize("call", [
    lambda c: c.info(), lambda c: c.model(), lambda c: c.requests(), lambda c: c.export("x"), lambda c: c.attach("x"),
    lambda c: c.log_probs([stemma.Group("g", [1], [stemma.Rollout([1])])]),
    lambda c: c.update_actor([stemma.Group("g", [1], [stemma.Rollout([1], reward=1.0)])], stemma.grpo(), stemma.adamw(1e-3)),
], ids=["info", "model", "requests", "export", "attach", "log_probs", "update_actor"])
def test_f8_without_a_server_every_call_names_the_address_and_what_to_do(call):
    with refused_address() as address:
        text = error_of(lambda: call(stemma.Client(address, connect_timeout_s=0.3)))
    print(text)
    assert address in text and "connection refused" in text and f"stemma local --model MODEL_DIR --listen {address}" in text


def test_f8_the_second_call_without_a_server_is_as_soon():
    with refused_address() as address, stemma.Client(address, connect_timeout_s=0.3) as client:
        for _ in range(3):
            error_of(client.info)


def test_f8_a_socket_file_that_is_not_there_is_told():
    assert "no such socket file" in error_of(stemma.Client("unix:no/such/socket", connect_timeout_s=0.3).info)


@pytest.mark.parametrize("text, words", [
    ("DNS resolution failed for no-such-host:7070: C-ares status is not ARES_SUCCESS", "host name is not known"),
    ("failed to connect to all addresses; last error: UNKNOWN: No route to host", "no route"),
    ("failed to connect to all addresses; last error: UNAVAILABLE: Socket closed", "connection was closed"),
    ("Deadline Exceeded", "no answer"), (None, "no answer")])
def test_f8_what_grpc_says_is_put_into_words(text, words):
    """Resolving a name takes as long as the machine's resolver likes, so its text is given here."""
    from stemma import _connection

    assert words in _connection._cause(text)


def test_f8_a_port_that_accepts_and_says_nothing_is_an_error_too():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = "127.0.0.1:%d" % listener.getsockname()[1]
        assert "no answer" in error_of(stemma.Client(address, connect_timeout_s=0.3).info)


def test_f8_something_else_that_listens_is_told():
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Quiet) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        text = error_of(stemma.Client(f"127.0.0.1:{other.server_port}", connect_timeout_s=0.5).info)
        other.shutdown()
    print(text)
    assert "not a Stemma server" in text


@pytest.mark.parametrize("address, says", [
    ("http://127.0.0.1:7070", "'127.0.0.1:7070'"), ("127.0.0.1", "host:port"), (7070, "host:port"), (":7070", "host:port"),
    (None, "host:port"), (":", "host:port"), (":0", "host:port"), (":abc", "host:port"), ("", "host:port"),
    ("127.0.0.1:73006", "'73006'.*from 1 to 65535, as in 127.0.0.1:7070"), ("localhost:0", "'0'.*from 1 to 65535"),
    ("localhost:abc", "'abc'.*from 1 to 65535"), ("localhost:", "''.*from 1 to 65535"), ("h:-1", "'-1'.*from 1 to 65535"),
    ("h:65536", "'65536'.*from 1 to 65535"), ("127.0.0.1:7070/x", "'7070/x'.*from 1 to 65535"), ("h:\u0663", "from 1 to 65535"),
    ("::1:7070", "in brackets"), ("ftp://x:1", "without ftp://, as 'x:1'"), ("xds:///a:1", "without xds://, as 'a:1'"),
    ("h:1,h:2", "of one server"), (" 127.0.0.1:7070", "which has a space"), ("127.0.0.1:7070\n", "which has a space"), ("[::1]:70700", r"as in \[::1\]:7070")])
def test_f8_an_address_that_cannot_be_one_is_refused_before_it_is_tried(address, says):
    with pytest.raises(ValueError, match=says):
        stemma.Client(address)


@pytest.mark.parametrize("address", ["localhost:1", "h:65535", "[::1]:7070", "dns:///h:7070", "ipv4:127.0.0.1:7070"])
def test_f8_an_address_that_can_be_one_is_tried(address):
    stemma.Client(address).close()


@pytest.mark.parametrize("address, loopback", [
    ("127.0.0.1:7070", True), ("127.9.9.9:1", True), ("[::1]:7070", True), ("LocalHost:7070", True), ("dns:///localhost:1", True),
    ("ipv4:127.0.0.1:7070", True), ("192.0.2.1:7070", False), ("localhost.example:1", False), ("[2001:db8::1]:7070", False)])
def test_f8_what_only_this_machine_reaches_is_told_from_its_address(address, loopback):
    from stemma import _connection

    assert _connection._is_loopback(address) == loopback


@pytest.mark.parametrize("name", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_f8_a_proxy_of_the_environment_is_named_where_a_server_elsewhere_does_not_answer(name, monkeypatch):
    for each in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(each, raising=False)
    assert "The environment has" not in error_of(stemma.Client("192.0.2.1:7070", connect_timeout_s=0.1).info)
    with refused_address() as address:
        monkeypatch.setenv(name, f"http://user:secret@{address}")
        text = error_of(stemma.Client("192.0.2.1:7070", connect_timeout_s=0.3).info)
        assert f"The environment has {name}: connections go through that proxy" in text and "secret" not in text
        assert "The environment has" not in error_of(stemma.Client(address, connect_timeout_s=0.3).info)


def test_f8_the_advice_names_an_address_that_a_server_takes():
    text = error_of(stemma.Client("unix:no/such/socket", connect_timeout_s=0.3).info)
    assert "stemma local --model MODEL_DIR --listen HOST:PORT" in text and "unix" not in stemma.Client.__init__.__doc__


def test_f8_a_server_that_starts_while_the_first_call_waits_is_found():
    with FakeServer({"GetModel": lambda *_: Model(step=3)}) as fake:
        address = fake.address
    timer = threading.Timer(0.5, lambda: servers.append(start_at(address, 4)))
    servers = []
    timer.start()
    try:
        assert stemma.Client(address, connect_timeout_s=WAIT_MAX_S).model()["step"] == 4
    finally:
        timer.join()
        servers[0].stop(None)


class SlowToGreet:
    """Takes connections for a server at once, and passes nothing on in the first delay_s of each: a server, or a machine
    between, under load."""

    def __init__(self, server_address, delay_s):
        self._host, _, port = server_address.rpartition(":")
        self._port, self._delay_s = int(port), delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client):
        time.sleep(self._delay_s)
        with client, socket.create_connection((self._host, self._port)) as server:
            up = threading.Thread(target=pass_on, args=(client, server), daemon=True)
            up.start()
            pass_on(server, client)
            up.join(WAIT_MAX_S)


def pass_on(source, sink):
    try:
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # either end is gone
        pass


def test_f8_a_server_that_is_slow_to_greet_is_reached():
    """gRPC gives up a connection after its backoff if it is not told otherwise, and would never reach this one."""
    with FakeServer({"GetModel": lambda *_: Model(step=3)}) as fake, SlowToGreet(fake.address, delay_s=3) as slow:
        assert stemma.Client(slow.address, connect_timeout_s=2 * WAIT_MAX_S, retries=0).model()["step"] == 3


def test_f8_a_worker_reaches_a_server_that_is_slow_to_greet():
    with Cluster(fake=True, worker=False) as cluster, SlowToGreet(cluster.worker_address, delay_s=3) as slow:
        cluster.worker_address = slow.address
        cluster.start_worker()
        assert cluster.state() == "IDLE"


def start_at(address, step):
    """A server of GetModel at an address that was free before."""
    from concurrent import futures

    server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    handler = grpc.unary_unary_rpc_method_handler(lambda *_: Model(step=step), response_serializer=Model.SerializeToString)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("stemma.v1.TrainingService", {"GetModel": handler}),))
    assert server.add_insecure_port(address)
    server.start()
    return server


def test_f8_a_server_that_was_reached_and_starts_again_is_waited_for():
    address = free_address()
    first = start_at(address, 1)
    client = stemma.Client(address, connect_timeout_s=0.3, retries=30, retry_delay_s=0.1)
    assert client.model()["step"] == 1
    first.stop(None).wait()
    later = []
    timer = threading.Timer(1.0, lambda: later.append(start_at(address, 2)))  # longer than connect_timeout_s
    timer.start()
    try:
        assert client.model()["step"] == 2
    finally:
        timer.join()
        later[0].stop(None)


def test_f8_a_server_that_was_reached_and_stays_away_is_told_after_the_retries():
    address = free_address()
    server = start_at(address, 1)
    client = stemma.Client(address, retries=2, retry_delay_s=0.05)
    client.model()
    server.stop(None).wait()
    text = error_of(client.model)
    print(text)
    assert address in text and "was lost" in text and "same request_id" in text


def test_f8_the_servers_own_words_are_kept():
    """STARTING is an answer: the server's reason and message, not ours."""
    with Cluster(fake=True, worker=False) as cluster:
        with pytest.raises(stemma.StemmaError) as error:
            stemma.Client(cluster.address, retries=0).log_probs([stemma.Group("g", [1], [stemma.Rollout([1])])])
        assert error.value.reason == "STARTING" and error.value.retry_after_s is not None


def test_f8_a_server_program_that_is_not_there_is_told(tmp_path):
    with pytest.raises(stemma.StemmaError) as error:
        stemma.LocalServer(tmp_path, binary=tmp_path / "stemma")
    assert str(tmp_path / "stemma") in str(error.value) and "binary=" in str(error.value)
