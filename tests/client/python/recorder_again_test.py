"""A request that comes to a recorder again: in the middle of the first try, or after one that failed, half-way or wholly."""

import threading
import warnings

import pytest
import stemma
from stemma import _recording

from recorder_test import Both, Disk, Recorder
from trace_test import GROUPS, sent_parts


def epochs(path):
    return [header.get("ppo_epochs", 1) for header, _ in stemma.trace.read(path)]


def payload(num_epochs=1):
    parts = sent_parts(GROUPS[:1])
    parts[0].update.ppo_epochs = num_epochs
    return parts


def full(trace, after):
    """The disk of a trace, which is full once after those bytes."""
    disk = Disk()
    trace._file, disk.file, disk.full_after = disk, trace._file, after
    return disk


def fails(recording, request_id, parts, error="OSError: full"):
    with pytest.warns(RuntimeWarning, match=f"request {request_id} was accepted, and may not be recorded: the recorder raised {error}"):
        recording.write(request_id, parts, 1)


def lose(recording, request_id, parts):
    """The answer to a request never comes."""
    with pytest.raises(TimeoutError), recording.sending(request_id, parts, lost=[True]):
        raise TimeoutError


@pytest.mark.parametrize("broken", [0, 1])
def test_what_one_of_two_traces_lacks_is_written_there_alone_when_the_request_comes_again(tmp_path, broken):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    with stemma.trace.TraceWriter(paths[0]) as a, stemma.trace.TraceWriter(paths[1]) as b:
        recording = _recording.Recording(Both(a, b))
        full((a, b)[broken], after=b"]}]}")
        fails(recording, "r", payload())
        recording.write("r", payload(), 1)
    assert [epochs(path) for path in paths] == [[1], [1]]


class Picky(stemma.trace.TraceWriter):
    """Refuses the first request before it begins its line."""

    refused = False

    def write_parts(self, parts, on_failure=None):
        if not self.refused:
            self.refused = True
            raise ValueError("no such field")
        super().write_parts(parts, on_failure)


def test_a_trace_that_did_not_begin_a_line_has_it_when_the_request_comes_again(tmp_path):
    """The other trace has it, which does not make it recorded."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    with stemma.trace.TraceWriter(paths[0]) as a, Picky(paths[1]) as b:
        recording = _recording.Recording(Both(a, b))
        fails(recording, "r", payload(), "ValueError: no such field")
        recording.write("r", payload(), 1)
    assert [epochs(path) for path in paths] == [[1], [1]]


def test_what_a_signals_handler_sends_twice_while_its_line_waits_is_written_once(tmp_path):
    with stemma.trace.TraceWriter(tmp_path / "t.jsonl") as trace:
        recording, disk = _recording.Recording(trace), full(trace, after=None)
        disk.then = [lambda: [recording.write("inner", payload(2), 1) for _ in range(2)]]
        recording.write("outer", payload(), 1)
    assert epochs(tmp_path / "t.jsonl") == [1, 2]


class Telling:
    """Has its own word of what fails later."""

    def __init__(self, trace):
        self._trace = trace

    def write_parts(self, parts, on_failure=None):
        self._trace.write_parts(parts, lambda error: on_failure(error))


def test_a_handlers_line_that_failed_is_written_again_whoever_is_told_first(tmp_path):
    with stemma.trace.TraceWriter(tmp_path / "t.jsonl") as trace:
        recording, disk = _recording.Recording(Telling(trace)), full(trace, after=b"\n")
        disk.then = [lambda: recording.write("inner", payload(2), 1)]
        with pytest.warns(RuntimeWarning, match="request inner was accepted, and may not be recorded: the recorder raised OSError: full"):
            recording.write("outer", payload(), 1)
        recording.write("inner", payload(2), 1)
    assert epochs(tmp_path / "t.jsonl") == [1, 2]


class Meeting(Recorder):
    """Does something in the middle of its first line."""

    def write_parts(self, parts):
        if self.meet is not None:
            meet, self.meet = self.meet, None
            meet()
        super().write_parts(parts)


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_request_that_comes_again_while_it_is_recorded_is_recorded_once(in_thread):
    """By a signal's handler, or a thread, which does not wait: the handler may hold up what the other waits for."""
    recorder = Meeting()
    recording = _recording.Recording(recorder)

    def again():
        recording.write("r", payload(), 1)

    def on_thread():
        thread = threading.Thread(target=again, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    recorder.meet = on_thread if in_thread else again
    again()
    assert len(recorder.ids) == 1


def test_of_a_payload_that_was_not_written_and_another_attach_records_neither():
    """The server may have either, the second where the weights of the first are lost."""
    recorder = Recorder(OSError("full"))
    recording = _recording.Recording(recorder)
    fails(recording, "r", payload())
    lose(recording, "r", payload(2))
    recording.found("r", 1)
    assert recorder.ids == []
    recording.write("r", payload(), 1)
    assert len(recorder.ids) == 1


def test_what_a_recorder_could_not_write_attach_has_it_write():
    recorder = Recorder(OSError("full"))
    recording = _recording.Recording(recorder)
    fails(recording, "r", payload())
    recording.found("r", 1)
    recording.found("r", 1)
    assert len(recorder.ids) == 1


def test_messages_are_kept_of_the_newest_that_are_not_written_and_of_none_that_is(tmp_path):
    with stemma.trace.TraceWriter(tmp_path / "t.jsonl") as trace:
        recording, disk = _recording.Recording(trace), full(trace, after=None)
        disk.then = [lambda: recording.write("inner", payload(2), 1)]
        recording.write("outer", payload(), 1)
        assert list(recording._memory._parts) == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the file is closed
        for request_id in "abcdef":
            recording.write(request_id, payload(), 1)
    assert list(recording._memory._parts) == list("cdef")


def test_a_request_that_is_recorded_takes_no_place_of_what_was_not_heard_of():
    recorder = Recorder()
    recording = _recording.Recording(recorder)
    for request_id in "abcd":
        lose(recording, request_id, payload())
    recording.write("r", payload(), 1)
    lose(recording, "r", payload())
    for request_id in "abcd":
        recording.found(request_id, 1)
    assert len(recorder.ids) == 5
