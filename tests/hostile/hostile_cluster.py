"""What the adversary's tests share: a server with a fake worker, its memory, raw parts of requests."""

import pathlib
import queue
import struct

from e2e.errors.good_request import Request, refusal
from e2e.errors.server import Cluster, wait_for
from stemma import _proto

__all__ = ["Cluster", "Held", "Request", "group_part", "header_part", "memory_mib", "refusal", "serves", "wait_for"]


def memory_mib(cluster, what="VmHWM"):
    """The server's memory now (VmRSS) or at its highest (VmHWM)."""
    for line in pathlib.Path(f"/proc/{cluster.server.pid}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {what}")


def serves(cluster):
    """A good request is accepted and applied, so whatever came before has not taken the server."""
    assert cluster.server.poll() is None, cluster.said()
    assert Request().send(cluster.stub).steps_applied == 1


def header_part(request=None, **fields):
    part = (request or Request()).parts()[0]
    for name, value in fields.items():
        setattr(part.update, name, value)
    return part


def group_part(uid, num_rollouts=1, prompt_tokens=4, response_tokens=3, mask=None):
    """As good_request.group, without lists on the way: for large ones."""
    part = _proto.GroupPart()
    part.group.uid = uid
    part.group.prompt_tokens = struct.pack("<i", 1) * prompt_tokens
    for i in range(num_rollouts):
        rollout = part.group.rollouts.add(rollout_id=f"{uid}/{i}", advantage=i + 0.5)
        rollout.response_tokens = struct.pack("<i", 2) * response_tokens
        rollout.old_log_probs = rollout.ref_log_prob = struct.pack("<f", -1) * response_tokens
        if mask is not None:
            rollout.response_mask = mask
    return part


class Held:
    """A stream that sends its parts and then nothing, until it is released."""

    def __init__(self, stub, parts, timeout=60):
        self._parts = queue.Queue()
        self.sent = 0
        for part in parts:
            self._parts.put(part)
        self.call = stub.UpdateActor.future(self._next(), timeout=timeout)

    def _next(self):
        while (part := self._parts.get()) is not None:
            self.sent += 1
            yield part

    def send(self, part):
        self._parts.put(part)

    def end(self):
        self._parts.put(None)

    def release(self):
        self.call.cancel()
        self.end()

    def refusal(self):
        """The error that ends the stream, which may be waited for: the client's half stays open until then."""
        try:
            return refusal(self.call.result)
        finally:
            self.end()
