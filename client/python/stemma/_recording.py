"""The recorder of a client: which requests it has, and that nothing it does hides a request from who sent it."""

import contextlib
import hashlib
import inspect
import logging
import threading
import warnings
import weakref

from . import _proto
from .errors import LineageLostError

_LOG = logging.getLogger("stemma")
_IDS_MAX = 4096  # ids that are remembered: far more requests than are sent again
_UNHEARD_MAX = 4  # requests whose messages are kept: they hold their tokens
_UNSURE = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")  # codes after which the server may have a request


class Line:
    """A request's line in a trace; called with the error where it could not be written and nobody else hears of it."""

    def __init__(self, on_failure):
        self.entries = []  # a trace's for each line that it takes of this request: two, where one recorder writes to two traces
        self._on_failure = on_failure

    def __call__(self, error):
        self._on_failure(error)

    def is_kept(self):
        """Whether every trace that took it has it, or will write it or tell of its failure; not where none took it."""
        return bool(self.entries) and all(entry.is_kept() for entry in self.entries)


class Recording:
    """Writes each request once, however often it is sent: after a TimeoutError it goes out again under the same id.

    Thread safety: all methods may be called from any thread.
    """

    def __init__(self, recorder):
        """recorder: has write_parts(parts); None: nothing is written."""
        if recorder is not None and not callable(getattr(recorder, "write_parts", None)):
            raise ValueError(f"recorder is {recorder!r:.60}, which has no write_parts(parts): pass a stemma.trace.TraceWriter, or None")
        self._recorder = recorder
        self._tells_later = recorder is not None and _takes_on_failure(recorder.write_parts)
        self._memory = _memory_of(recorder)

    def write(self, request_id, parts, stacklevel):
        """Writes a request that the server has accepted. Warns where the recorder fails: the server goes on with it.

        stacklevel  of warn, for the caller
        """
        if self._recorder is None:
            return
        claim = object()
        line = Line(lambda error: self._failed(request_id, parts, claim, error, stacklevel=1))
        later = {"on_failure": line} if self._tells_later else {}
        try:
            if self._memory.is_new(request_id, _digest(parts), claim):
                self._recorder.write_parts(parts, **later)
        except BaseException as error:
            if not line.is_kept():
                self._failed(request_id, parts, claim, error, stacklevel + 1)
            elif isinstance(error, Exception):  # of what the recorder does beside its trace
                warn(f"request {request_id} was accepted and recorded, and then the recorder raised {type(error).__name__}: {error}",
                     stacklevel + 1)
            if not isinstance(error, Exception):
                raise

    def _failed(self, request_id, parts, claim, error, stacklevel):
        """Takes back that a request was written, and warns, unless the error ends the process and so is heard of."""
        self._memory.forget(request_id, claim)
        if not isinstance(error, Exception):
            self._memory.keep(request_id, parts)
            return
        warn(f"request {request_id} was accepted, and the recorder could not write it: {type(error).__name__}: {error}",
             stacklevel + 1)

    @contextlib.contextmanager
    def sending(self, request_id, parts, lost):
        """Keeps the messages of a request where it is not known whether the server has it: found() may come for it.

        lost    gets the tries whose answer never came, and that may have been done
        """
        try:
            yield
        except BaseException as error:
            if self._recorder is not None and not _is_refusal(error, lost):
                self._memory.keep(request_id, parts)
            raise

    def found(self, request_id, stacklevel):
        """Writes a request that the server turns out to have, where its messages are kept. stacklevel: as for write()."""
        parts = self._memory.kept(request_id)
        if parts is not None:
            self.write(request_id, parts, stacklevel + 1)


def _is_refusal(error, lost):
    """Whether the error says that the server has not this request, nor had it of a try before. What refuses a try at the door, as for
    want of memory, knows nothing of those before."""
    if not isinstance(error, Exception) or getattr(error, "code", None) in _UNSURE:
        return False
    return not lost or isinstance(error, LineageLostError) or getattr(error, "code", None) == "ALREADY_EXISTS"


class _Memory:
    """What a recorder has: the payload last written under each id; and the messages of the newest requests that a server may
    have, and the recorder has not."""

    def __init__(self):
        self._digests, self._parts = {}, {}  # by request_id, in the order in which they came; (digest, claim), and messages
        self._unheard = {}  # likewise: the digest of what a server may have, None where it may have one of several
        self._lock = threading.RLock()  # a signal's handler may send a request, too

    def is_new(self, request_id, digest, claim):
        """Whether this payload is not the last of the id, and then makes it so. A server takes another one under an id whose
        weights are lost.

        claim   an object of the caller's own, by which forget() knows that this call made it so
        """
        with self._lock:
            self._parts.pop(request_id, None)
            self._unheard.pop(request_id, None)
            if request_id in self._digests and self._digests[request_id][0] == digest:
                return False
            _add(self._digests, request_id, (digest, claim), _IDS_MAX)
            return True

    def forget(self, request_id, claim):
        """Takes back what is_new() of this claim did."""
        with self._lock:
            if request_id in self._digests and self._digests[request_id][1] is claim:
                del self._digests[request_id]

    def keep(self, request_id, parts):
        """Keeps the messages, but not under an id that has a payload, nor those of two payloads under one id: which of the two a
        server has, only that one knows."""
        digest = _digest(parts)
        with self._lock:
            if request_id in self._digests:
                return
            is_sure = self._unheard.get(request_id, digest) == digest
            _add(self._unheard, request_id, digest if is_sure else None, _IDS_MAX)
            self._parts.pop(request_id, None)
            if is_sure:
                _add(self._parts, request_id, parts, _UNHEARD_MAX)

    def kept(self, request_id):
        """The messages; None where there are none."""
        with self._lock:
            return self._parts.get(request_id)


def _takes_on_failure(write_parts):
    """Whether it says of a line that it writes later that it failed, as TraceWriter.write_parts does."""
    try:
        return "on_failure" in inspect.signature(write_parts).parameters
    except (TypeError, ValueError):  # no signature is known
        return False


_MEMORIES = {}  # by id() of the recorder, while it lives: clients that share one write each request once
_MEMORIES_LOCK = threading.RLock()


def _memory_of(recorder):
    """The memory of this very object: another that is equal to it, as dataclasses are, writes to another file."""
    key = id(recorder)
    with _MEMORIES_LOCK:
        if key not in _MEMORIES:
            memory = _Memory()
            try:
                weakref.finalize(recorder, _MEMORIES.pop, key, None).atexit = False  # another object may get its id()
            except TypeError:  # None, or what no weak reference can be made of
                return memory
            _MEMORIES[key] = memory
        return _MEMORIES[key]


def _add(newest, key, value, count_max):
    """Adds it to a dict as its newest."""
    newest.pop(key, None)
    newest[key] = value
    while len(newest) > count_max:
        del newest[next(iter(newest))]


def _digest(parts):
    """The digest of a payload, without what common/base/digest.cc leaves out of the server's."""
    head = _proto.GroupPart()
    head.CopyFrom(parts[0])
    for field in ("request_id", "wait_ms", "expected_lineage"):
        head.update.request.ClearField(field)
    head.update.ClearField("trace_step")
    sha = hashlib.sha256()
    for part in (head, *parts[1:]):
        sha.update(part.SerializeToString(deterministic=True))
    return sha.digest()


def warn(text, stacklevel):
    """Warns of what became of a request. Where warnings are errors the log tells it: an error would take the place of what the
    request gave.

    stacklevel  1: the caller of this function
    """
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)
    except RuntimeWarning:
        _LOG.warning("%s", text)
