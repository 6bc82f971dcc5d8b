"""The channel to one server: opened at the first call, in words where it cannot be.

A server that was never reached is an error within connect_timeout_s: the address is probably wrong. One that answered before
may be starting again, so what to do about it is the caller's: this file only says what happened.
"""

import contextlib
import ipaddress
import os
import threading
import time
import weakref

import grpc

from . import errors
from ._tls import credentials_of

_RECEIVE_BYTES_MAX = 64 << 20
_PROBE_S = 0.3
_POLL_S = 0.25            # so long gRPC's own thread may go on to look after it was told to end
_CLOSE_S = 0.1            # at most so long close() waits for a thread that looks for a server
_RECONNECT_MS = 100       # first pause between two tries of gRPC's own, so that a server that starts is found soon
_RECONNECT_MAX_MS = 1000
_HANDSHAKE_MS = 10_000    # a connection that the server has not greeted by then is given up; gRPC reads it as "min_reconnect"
_PING_MS = 30_000         # while a call waits; the server refuses more than one in 20 s
_PING_ANSWER_MS = 10_000  # a server whose machine is gone, or that stands still, is lost after it

_FORKS_SINCE = (1, 80)    # of grpcio: whose channels connect in a process that was forked off from one with others

_PORT_MAX = 65535
_SOCKETS = ("unix:", "unix-abstract:")     # gRPC's; a Stemma server has none, a proxy before it may
_RESOLVERS = ("dns:", "ipv4:", "ipv6:")    # gRPC's names of how a host is looked up
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")     # variables that gRPC reads, the first that is set

_CLOSED = "the connection was closed"
_NO_TLS = "the server speaks no TLS"
_ANOTHER_HOST = "the server's certificate does not name this host among its subject alternative names"
# Parts of gRPC's texts, in the order in which they are looked for, and what they mean.
_CAUSES = (
    ("Connection refused", "connection refused: no process listens there"),
    ("DNS resolution failed", "the host name is not known"),
    ("errors resolving", "the host name is not known"),
    ("Name or service not known", "the host name is not known"),
    ("Misformatted domain name", "the host name is not one"),
    ("No such file or directory", "there is no such socket file"),
    ("Permission denied", "permission denied"),
    ("Network is unreachable", "the network is unreachable"),
    ("No route to host", "no route to the host"),
    ("certificate has expired", "the server's certificate has ended"),
    ("certificate is not yet valid", "the server's certificate begins later: look at both clocks"),
    ("unsupported certificate purpose", "the server's certificate is not for servers"),
    # Older gRPC says no more than that of any certificate that it refuses.
    ("certificate verify failed", "the server's certificate is not accepted: no CA of tls.ca signed it, or an intermediate is missing in "
                                  "the server's --tls-cert, or it has ended"),
    ("hostname verification", _ANOTHER_HOST),
    ("not in peer certificate", _ANOTHER_HOST),
    ("does not match ssl server name", _ANOTHER_HOST),
    ("wrong version number", _NO_TLS),
    ("http1", "what listens there is not a Stemma server"),
    ("HTTP/1", "what listens there is not a Stemma server"),
    ("Failed parsing HTTP/2", "what listens there is not a Stemma server"),
    ("Unexpected response from server", "what listens there is not a Stemma server"),
    ("Connection reset", _CLOSED),
    ("Broken pipe", _CLOSED),
    ("Socket closed", _CLOSED),
    ("GOAWAY", _CLOSED),
)
# Those of a call that had no connection to be sent on.
_UNSENT = ("failed to connect to all addresses", "DNS resolution failed", "errors resolving")


_made = weakref.WeakValueDictionary()  # the connections of this process
_forked_beside = False                # whether it, or what it was forked off from, was forked off beside one that was in use


def _note_fork():
    """Remembers it in the new process, whatever becomes of the connections that the fork brought along."""
    global _forked_beside
    others = [found() for found in _made.valuerefs()]
    _forked_beside = _forked_beside or any(made is not None and made._is_used and not made._closed for made in others)
    _made.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class Connection:
    """Thread safety: all methods may be called from any thread."""

    def __init__(self, address, connect_timeout_s, tls=None):
        self.address = _checked(address)
        self._speaks_tls = tls is not None
        self._timeout_s = connect_timeout_s
        self._reached, self._closed = False, False
        self._owner_pid = os.getpid()
        self._looking = []  # the threads that look for a server, by their ids
        self._looking_changed = threading.Condition()
        self._polled_until = 0.0  # of time.monotonic()
        self._look_lock = threading.Lock()  # two that look at once make gRPC's own thread outlive both
        _check_fork(address)
        self._is_used = False
        self.channel = _channel_to(address, credentials_of(tls))
        _made[id(self)] = self

    def reach(self, within_s):
        """Returns once a server was reached, now or ever. Raises StemmaError UNAVAILABLE after connect_timeout_s or within_s,
        ValueError where the connection was closed. Threads that look for a server at once wait side by side: the channel, and
        so the attempt, is one."""
        self._check_open()
        if self._reached:
            return
        self._is_used = True
        timeout_s = min(self._timeout_s, within_s)
        with self._counted():
            self._check_open()
            if not self._is_ready_within(timeout_s):
                self._check_open()
                raise errors.StemmaError("UNAVAILABLE", "", self._never_reached(timeout_s))

    def explain(self, error):
        """The StemmaError of a call that failed; a lost connection is told in words, without gRPC's own text."""
        out = errors.from_rpc_error(error)
        if self._closed and error.code() == grpc.StatusCode.CANCELLED:
            return errors.StemmaError("CANCELLED", "", f"this client of {self.address} was closed while the call ran")
        if out.reason or error.code() != grpc.StatusCode.UNAVAILABLE:
            return out
        renewed = "; where files of stemma.Tls were renewed, make a new Client" if self._speaks_tls else ""
        return errors.StemmaError(
            error.code().name, "", f"the connection to the server at {self.address} was lost ({_cause(error.details())}) and "
            f"tries to reach it again failed: look whether it runs, and at its log{renewed}. A request may have been accepted: send it "
            "again with the same request_id, it is never applied twice")

    def may_be_done(self, error):
        """Whether a call that was UNAVAILABLE may have been done all the same: a connection carried it, and no server said that it
        starts or recovers."""
        return self.explain(error).reason not in errors.LOADING and not any(part in (error.details() or "") for part in _UNSENT)

    def close(self):
        """Ends calls under way. Lets one that looks for a server stop first: gRPC's own thread that looks would fail aloud. In a
        process that was forked off it leaves the channel, whose threads are the other's: gRPC would wait for them for ever."""
        self._closed = True
        if os.getpid() != self._owner_pid:
            return
        own = threading.get_ident()  # a signal's handler may close what it interrupts
        with self._looking_changed:
            self._looking_changed.wait_for(lambda: all(thread == own for thread in self._looking))
            while (left_s := self._polled_until - time.monotonic()) > 0:
                time.sleep(left_s)
            self.channel.close()

    @contextlib.contextmanager
    def _counted(self):
        """Counts the calling thread among those that close() lets stop first."""
        thread = threading.get_ident()
        with self._looking_changed:
            self._looking.append(thread)
        try:
            yield
        finally:
            with self._looking_changed:
                self._looking.remove(thread)
                self._looking_changed.notify_all()

    def _check_open(self):
        if os.getpid() != self._owner_pid:  # two processes would write to one socket
            raise ValueError(f"this client of {self.address} is of process {self._owner_pid}, from which this one was forked off: make "
                             "a stemma.Client in each process (a request that was sent is found there by client.attach(request_id))")
        if self._closed:
            raise ValueError(f"this client of {self.address} is closed: make another stemma.Client (a `with` closes its client "
                             "at its end)")

    def _is_ready_within(self, timeout_s):
        give_up = time.monotonic() + timeout_s
        while not self._look_lock.acquire(timeout=max(0, min(_CLOSE_S, give_up - time.monotonic()))):
            if self._closed or time.monotonic() >= give_up:
                return self._reached
        try:
            return self._reached or (time.monotonic() < give_up and self._looks_ready(give_up))
        finally:
            self._look_lock.release()

    def _looks_ready(self, give_up):
        ready = grpc.channel_ready_future(self.channel)
        try:
            while True:
                try:
                    ready.result(timeout=max(0, min(_CLOSE_S, give_up - time.monotonic())))
                    self._reached = True
                    return True
                except grpc.FutureTimeoutError:
                    if self._closed or time.monotonic() >= give_up:
                        return False
        finally:
            ready.cancel()  # whatever ended the wait: its thread ends, too
            if not self._reached:
                self._polled_until = time.monotonic() + _POLL_S

    def _never_reached(self, timeout_s):
        listen = "HOST:PORT" if self.address.startswith(_SOCKETS) else self.address
        cause = self._probe()
        return (f"no Stemma server answers at {self.address} ({cause}; tried for {round(timeout_s, 2):g} s). Is it running? `stemma local "
                f"--model MODEL_DIR --listen {listen}` starts one; else check host and port{self._tls_hint(cause)}{_proxy_hint(self.address)}")

    def _tls_hint(self, cause):
        """What TLS may have to do with it: who is not let in is told no more than that the connection was closed."""
        if cause == _NO_TLS:
            return ". It has no --tls-cert: give it one, or make the Client without tls"
        if cause != _CLOSED:
            return ""
        if self._speaks_tls:
            return (". Where the server has --tls-ca, it wants a certificate that one of these CAs signed: tls.cert and tls.key; its log says "
                    "what was wrong with one")
        return ". Where the server speaks TLS (--tls-cert), the Client needs tls=stemma.Tls(ca=...)"

    def _probe(self):
        """One call that tells why: the future of a channel does not."""
        try:
            self.channel.unary_unary("/stemma.v1.TrainingService/GetModel")(b"", timeout=_PROBE_S)
        except grpc.RpcError as error:
            return _cause(error.details())
        return "it began to answer just now: try again"


def _check_fork(address):
    """Refuses what older gRPC never connects, however long a call may take: a channel of a process that was forked off from one whose
    channel was in use."""
    tells_grpc = os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() in ("1", "true", "yes")
    if _forked_beside and not tells_grpc and _version_of(grpc.__version__) < _FORKS_SINCE:
        raise ValueError(f"a client of {address} in a process that was forked off from one whose client is in use would wait for ever: "
                         f"grpcio is {grpc.__version__}. Start processes by multiprocessing's \"spawn\", or use grpcio "
                         f"{'.'.join(map(str, _FORKS_SINCE))} or newer")


def _version_of(text):
    """The first two numbers of 1.80.1, 1.80.0rc1."""
    return tuple(int(part) for part in text.split(".")[:2])


def _channel_to(address, credentials):
    """credentials: None for plaintext."""
    options = [
        ("grpc.max_receive_message_length", _RECEIVE_BYTES_MAX), ("grpc.max_send_message_length", -1),
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS), ("grpc.min_reconnect_backoff_ms", _HANDSHAKE_MS),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MAX_MS),
        # A server may come back at another address: its name is asked for again at each try, not only every 30 s.
        ("grpc.dns_min_time_between_resolutions_ms", _RECONNECT_MAX_MS), ("grpc.keepalive_time_ms", _PING_MS),
        # Which of the two counts differs between gRPC's versions.
        ("grpc.keepalive_timeout_ms", _PING_ANSWER_MS), ("grpc.http2.ping_timeout_ms", _PING_ANSWER_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_http_proxy", int(not _is_loopback(address)))]  # no proxy reaches a server of this machine
    if credentials is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, credentials, options)


def _cause(text):
    text = (text or "").lower().replace("_", " ")
    return next((words for part, words in _CAUSES if part.lower() in text), "no answer")


def _is_loopback(address):
    """Whether only this machine can reach it: 127.0.0.0/8, ::1, localhost."""
    host = _host(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _host(address):
    """Without port, brackets and gRPC's words before it."""
    rest = next((address[len(name):] for name in _RESOLVERS if address.startswith(name)), address)
    return rest.rpartition("/")[2].rpartition(":")[0].strip("[]")


def _proxy_hint(address):
    """Where the environment sends a connection through a proxy, gRPC says of it no more than that nothing answers."""
    name = next((name for name in _PROXIES if os.environ.get(name)), None)
    if name is None or address.startswith(_SOCKETS) or _is_loopback(address):
        return ""
    return f". The environment has {name}: connections go through that proxy, except to hosts that no_proxy names"


def _checked(address):
    if not isinstance(address, str):
        raise ValueError(f"address is {address!r}: pass \"host:port\"")
    scheme, slashes, rest = address.partition("://")
    if address.startswith(_SOCKETS):
        return address
    if slashes and not address.startswith(_RESOLVERS):
        raise ValueError(f"address is {address!r}: pass it without {scheme}://, as {rest.strip('/')!r}")
    if any(letter.isspace() for letter in address):
        raise ValueError(f"address is {address!r}, which has a space: pass \"host:port\", as in 127.0.0.1:7070")
    if "," in address:
        raise ValueError(f"address is {address!r}: pass the \"host:port\" of one server")
    host, _, port = address.rpartition(":")
    if not host:
        raise ValueError(f"address is {address!r}: pass \"host:port\", as in 127.0.0.1:7070")
    if ":" in host and not host.startswith(("[", *_RESOLVERS)):
        raise ValueError(f"address is {address!r}: pass \"host:port\", an IPv6 host in brackets, as in [::1]:7070")
    # gRPC takes a larger port modulo 65536.
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= _PORT_MAX):
        raise ValueError(f"address is {address!r}, whose port is {port!r}: pass \"host:port\" with a port from 1 to "
                         f"{_PORT_MAX}, as in {host}:7070")
    return address
