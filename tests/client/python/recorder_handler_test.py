"""A signal's handler that sends a request while its thread's is recorded, wherever it comes."""

import itertools
import sys

import pytest
import stemma
from stemma import _recording

from recorder_test import Recorder
from trace_test import GROUPS, sent_parts


OTHERS = 4  # and one more are those of which the first is forgotten, in each test


class Handler:
    """Calls a function before the nth operation that the recorder's code makes from now on, as the interpreter calls a signal's."""

    FILES = (_recording.__file__, stemma.trace.__file__)

    def __init__(self, nth, function):
        self.came, self._left, self._function = False, nth, function

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _trace(self, frame, event, _argument):
        if frame.f_code.co_filename not in self.FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                self.came = True
                self._function()
        return self._trace


def request(num_epochs):
    parts = sent_parts(GROUPS[:1])
    parts[0].update.ppo_epochs = num_epochs
    return parts


def strike(recording, handler, parts):
    """Records OTHERS requests and one more, again and again, each time with the handler one operation later in the last one. Yields the
    number of each time, and whether the handler came."""
    for nth in itertools.count(1):
        for index in range(OTHERS):
            recording.write(f"r{nth}-{index}", parts, 1)
        with Handler(nth, lambda: handler(nth)) as struck:
            recording.write(f"r{nth}", parts, 1)
        yield nth, struck.came
        if not struck.came:
            assert nth > 200  # operations of one write
            return


def test_a_handler_that_sends_the_same_request_anywhere_leaves_it_recorded_once():
    recorder = Recorder()
    recording, parts = _recording.Recording(recorder), request(1)
    for nth, _ in strike(recording, lambda nth: recording.write(f"r{nth}", parts, 1), parts):
        assert len(recorder.ids) == nth * (OTHERS + 1)


@pytest.mark.filterwarnings("error")
def test_a_handler_anywhere_hides_no_request_however_many_came_before(monkeypatch):
    """What is forgotten for the newest ones is forgotten by both at once."""
    monkeypatch.setattr(_recording, "_IDS_MAX", OTHERS)
    recorder = Recorder()
    recording, parts, inner = _recording.Recording(recorder), request(1), request(2)
    num_handlers = 0
    for nth, came in strike(recording, lambda nth: recording.write(f"handler{nth}", inner, 1), parts):
        num_handlers += came
        assert len(recorder.ids) == nth * (OTHERS + 1) + num_handlers


@pytest.mark.filterwarnings("ignore:request")
def test_a_handler_anywhere_hides_no_request_where_a_recorder_fails():
    """The messages of what it has not are forgotten for the newest ones."""
    class Full:
        def write_parts(self, parts):
            raise OSError("full")

    recording, parts, inner = _recording.Recording(Full()), request(1), request(2)
    for nth, _ in strike(recording, lambda nth: recording.write(f"handler{nth}", inner, 1), parts):
        assert recording._memory.kept(f"r{nth}") is parts


def test_a_request_of_which_a_recorder_tells_at_once_that_it_failed_is_written_when_it_comes_again():
    class Queueing(Recorder):
        def write_parts(self, parts, on_failure=None):
            if not told:
                told.append(parts)
                return on_failure(OSError("full"))
            super().write_parts(parts)

    told, recorder = [], Queueing()
    recording, parts = _recording.Recording(recorder), request(1)
    with pytest.warns(RuntimeWarning, match="request r was accepted, and may not be recorded: the recorder raised OSError: full"):
        recording.write("r", parts, 1)
    for _ in range(2):
        recording.write("r", parts, 1)
    assert len(recorder.ids) == 1
