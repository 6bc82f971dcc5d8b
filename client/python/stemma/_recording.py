"""The recorder of a client: which requests it has, and that nothing it does hides a request from who sent it."""

import logging
import threading
import warnings

_LOG = logging.getLogger("stemma")
_IDS_MAX = 4096  # ids that are remembered: far more requests than are sent again


class Recording:
    """Writes each request once, however often it is sent: after a TimeoutError it goes out again under the same id.

    Thread safety: all methods may be called from any thread.
    """

    def __init__(self, recorder):
        """recorder: has write_parts(parts); None: nothing is written."""
        if recorder is not None and not callable(getattr(recorder, "write_parts", None)):
            raise ValueError(f"recorder is {recorder!r:.60}, which has no write_parts(parts): pass a stemma.trace.TraceWriter, or None")
        self._recorder = recorder
        self._ids = {}  # in the order in which they came
        self._lock = threading.RLock()  # a signal's handler may send a request, too

    def write(self, request_id, parts, stacklevel):
        """Warns where the recorder fails: the server has the request, and goes on with it.

        stacklevel  of warn, for the caller
        """
        if self._recorder is None or not self._is_new(request_id):
            return
        try:
            self._recorder.write_parts(parts)
        except BaseException as error:
            self._ids.pop(request_id, None)
            if not isinstance(error, Exception):
                raise
            warn(f"request {request_id} was accepted, and the recorder could not write it: {type(error).__name__}: {error}",
                 stacklevel + 1)

    def _is_new(self, request_id):
        with self._lock:
            if request_id in self._ids:
                return False
            self._ids[request_id] = True
            while len(self._ids) > _IDS_MAX:
                del self._ids[next(iter(self._ids))]
            return True


def warn(text, stacklevel):
    """Warns of what became of a request. Where warnings are errors the log tells it: an error would take the place of what the
    request gave.

    stacklevel  1: the caller of this function
    """
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel + 1)
    except RuntimeWarning:
        _LOG.warning("%s", text)
