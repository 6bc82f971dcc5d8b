"""The channel to one server: opened at the first call, in words where it cannot be.

A server that was never reached is an error within connect_timeout_s: the address is probably wrong. One that answered before
may be starting again, so what to do about it is the caller's: this file only says what happened.
"""

import threading

import grpc

from . import errors

_RECEIVE_BYTES_MAX = 64 << 20
_PROBE_S = 0.3
_RECONNECT_MS = 100       # first pause between two tries of gRPC's own, so that a server that starts is found soon
_RECONNECT_MAX_MS = 1000
_PING_MS = 30_000         # while a call waits; the server refuses more than one in 20 s
_PING_ANSWER_MS = 10_000  # a server whose machine is gone, or that stands still, is lost after it

# Parts of gRPC's texts, in the order in which they are looked for, and what they mean.
_CAUSES = (
    ("Connection refused", "connection refused: no process listens there"),
    ("DNS resolution failed", "the host name is not known"),
    ("Name or service not known", "the host name is not known"),
    ("Misformatted domain name", "the host name is not one"),
    ("No such file or directory", "there is no such socket file"),
    ("Permission denied", "permission denied"),
    ("Network is unreachable", "the network is unreachable"),
    ("No route to host", "no route to the host"),
    ("http1", "what listens there is not a Stemma server"),
    ("HTTP/1", "what listens there is not a Stemma server"),
    ("Failed parsing HTTP/2", "what listens there is not a Stemma server"),
    ("Unexpected response from server", "what listens there is not a Stemma server"),
    ("Connection reset", "the connection was closed"),
    ("Broken pipe", "the connection was closed"),
    ("Socket closed", "the connection was closed"),
    ("GOAWAY", "the connection was closed"),
)


class Connection:
    """Thread safety: all methods may be called from any thread."""

    def __init__(self, address, connect_timeout_s):
        self.address = _checked(address)
        self._timeout_s = connect_timeout_s
        self._reached = False
        self._lock = threading.Lock()
        self.channel = grpc.insecure_channel(address, options=[
            ("grpc.max_receive_message_length", _RECEIVE_BYTES_MAX), ("grpc.max_send_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS), ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
            ("grpc.max_reconnect_backoff_ms", _RECONNECT_MAX_MS), ("grpc.keepalive_time_ms", _PING_MS),
            # Which of the two counts differs between gRPC's versions.
            ("grpc.keepalive_timeout_ms", _PING_ANSWER_MS), ("grpc.http2.ping_timeout_ms", _PING_ANSWER_MS),
            ("grpc.http2.max_pings_without_data", 0)])

    def reach(self):
        """Returns once a server was reached, now or ever. Raises StemmaError UNAVAILABLE after connect_timeout_s."""
        if self._reached:
            return
        with self._lock:
            if self._reached:
                return
            ready = grpc.channel_ready_future(self.channel)
            try:
                ready.result(timeout=self._timeout_s)
            except grpc.FutureTimeoutError:
                ready.cancel()
                raise errors.StemmaError("UNAVAILABLE", "", self._never_reached()) from None
            self._reached = True

    def explain(self, error):
        """The StemmaError of a call that failed; a lost connection is told in words, without gRPC's own text."""
        out = errors.from_rpc_error(error)
        if out.reason or error.code() != grpc.StatusCode.UNAVAILABLE:
            return out
        return errors.StemmaError(
            error.code().name, "", f"the connection to the server at {self.address} was lost ({_cause(error.details())}) and "
            "tries to reach it again failed: look whether it runs, and at its log. A request may have been accepted: send it "
            "again with the same request_id, it is never applied twice")

    def close(self):
        self.channel.close()

    def _never_reached(self):
        listen = self.address if ":" in self.address else "HOST:PORT"
        return (f"no Stemma server answers at {self.address} ({self._probe()}; tried for {self._timeout_s:g} s). Is it "
                f"running? `stemma local --model MODEL_DIR --listen {listen}` starts one; else check host and port")

    def _probe(self):
        """One call that tells why: the future of a channel does not."""
        try:
            self.channel.unary_unary("/stemma.v1.TrainingService/GetModel")(b"", timeout=_PROBE_S)
        except grpc.RpcError as error:
            return _cause(error.details())
        return "it began to answer just now: try again"


def _cause(text):
    return next((words for part, words in _CAUSES if part in (text or "")), "no answer")


def _checked(address):
    if not isinstance(address, str):
        raise ValueError(f"address is {address!r}: pass \"host:port\"")
    scheme, slashes, rest = address.partition("://")
    if slashes and scheme.lower() in ("http", "https", "grpc", "tcp"):
        raise ValueError(f"address is {address!r}: pass it without {scheme}://, as {rest.rstrip('/')!r}")
    if ":" not in address or address.startswith(":"):
        raise ValueError(f"address is {address!r}: pass \"host:port\"")
    return address
