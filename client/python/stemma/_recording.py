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
    """One request's line in the traces of a recorder, however often it is tried; called with the error where a trace that was to write
    it later could not."""

    def __init__(self, request_id, digest):
        self.digest, self._request_id = digest, request_id
        self.entries = {}  # a TraceWriter's own, by which it knows whether it has the line: two, where one recorder writes to two traces
        self.is_done = False  # whether write_parts came to its end, which reached every trace
        self.has_failed = False  # whether a trace said so, which may be before that end

    def __call__(self, error):
        self.has_failed = True
        if isinstance(error, Exception):  # another ends the process and so is heard of
            _warn_of(self._request_id, error, stacklevel=1)

    def is_written(self):
        """Whether nothing is left to do. The traces say so themselves: a Ctrl-C may come before anybody hears that one of them failed."""
        return self.is_done and not self.has_failed and all(entry.is_whole() for entry in tuple(self.entries.values()))


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
        lock = threading.Lock()
        with lock:  # which lets go of it wherever a Ctrl-C comes
            try:
                line = self._memory.begin(request_id, parts, lock)
                if line is None:
                    return
                line.is_done = line.has_failed = False
                self._recorder.write_parts(parts, **({"on_failure": line} if self._tells_later else {}))
                line.is_done = True
            except Exception as error:
                _warn_of(request_id, error, stacklevel + 1)
        self._memory.settle()

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
    """What a recorder has: the Line of the payload last accepted under each id; and the messages of the newest requests that a server
    may have, and the recorder has not.

    A signal's handler may send a request between any two operations of the thread that it interrupts, and has ended when that goes on:
    a method looks at what a handler may have changed behind what keeps the next one out, and no loop runs over a dict itself.
    """

    def __init__(self):
        self._lines, self._parts = {}, {}  # by request_id, in the order in which they came
        self._tries = {}  # likewise, by request_id and digest: the lock of the last try, which is held while that goes on
        self._unheard = {}  # by request_id: the digest of what a server may have, None where it may have one of several
        self._lock = threading.RLock()  # which a handler passes

    def begin(self, request_id, parts, lock):
        """Gives the Line of an accepted payload to the try that is to write it, and keeps the messages until it is written; None where
        it is, or where another try is at it. A server takes another payload under an id whose weights are lost.

        lock    is held while the try goes on
        """
        digest = _digest(parts)
        with self._lock:
            self._unheard.pop(request_id, None)
            before = self._tries.get((request_id, digest))
            if before is not None and before.locked():
                return None
            _add(self._tries, (request_id, digest), lock, _IDS_MAX)  # keeps handlers out
            line = self._lines.get(request_id)
            if line is None or line.digest != digest:
                line = Line(request_id, digest)
                _add(self._lines, request_id, line, _IDS_MAX)
            if line.is_written():
                return None
            _add(self._parts, request_id, parts)
            return line

    def settle(self):
        """Lets the messages go of what is written, and the oldest where there are too many."""
        with self._lock:
            for request_id in list(self._parts):
                line = self._lines.get(request_id)
                if line is not None and line.is_written():
                    self._parts.pop(request_id, None)
            _trim(self._parts, _UNHEARD_MAX)

    def keep(self, request_id, parts):
        """Keeps the messages, but not those of a payload that is written, nor of two payloads under one id: which of the two a server
        has, only that one knows."""
        digest = _digest(parts)
        with self._lock:
            line = self._lines.get(request_id)
            if line is not None and line.is_written():
                return
            is_sure = self._unheard.get(request_id, digest if line is None else line.digest) == digest
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


_MEMORIES = {}  # by id() of the recorder, while it lives, (reference to it, memory): clients that share one write each request once
_MEMORIES_LOCK = threading.RLock()


def _memory_of(recorder):
    """The memory of this very object: another that is equal to it, as dataclasses are, writes to another file."""
    key = id(recorder)
    with _MEMORIES_LOCK:
        known, memory = _MEMORIES.get(key, (None, None))
        if known is None or known() is not recorder:  # another object may get an id(), and a Ctrl-C keep the first from being forgotten
            memory = _Memory()
            with contextlib.suppress(TypeError):  # of None, and of what no weak reference can be made of
                _MEMORIES[key] = weakref.ref(recorder, lambda _, forget=_MEMORIES.pop: forget(key, None)), memory
        return memory


def _add(newest, key, value, count_max=None):
    """Adds it to a dict as its newest."""
    newest.pop(key, None)
    newest[key] = value
    if count_max is not None:
        _trim(newest, count_max)


def _trim(newest, count_max):
    """Drops the oldest."""
    if len(newest) > count_max:
        for key in tuple(newest)[:-count_max]:
            newest.pop(key, None)


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


def _warn_of(request_id, error, stacklevel):
    """Warns that the recorder raised, which may be behind the end of its line, or when one of two traces has it."""
    warn(f"request {request_id} was accepted, and may not be recorded: the recorder raised {type(error).__name__}: {error}", stacklevel + 1)


def warn(text, stacklevel):
    """Warns of what became of a request. Where warnings are errors the log tells it: an error would take the place of what the
    request gave.

    stacklevel  1: the caller of this function
    """
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)
    except RuntimeWarning:
        _LOG.warning("%s", text)
