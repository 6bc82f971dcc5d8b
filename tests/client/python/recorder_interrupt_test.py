"""A Ctrl-C that comes while the recorder of a client writes, wherever it comes."""

import contextlib
import itertools
import linecache
import re
import sys
import threading
import warnings

import grpc
import pytest
import stemma
from stemma import _future, _recording, client

from client_test import GROUPS as REWARDED, status
from fake_server import FakeServer, abort
from recorder_test import Both, Disk
from trace_test import GROUPS, sent_parts


class Interrupts:
    """Raises KeyboardInterrupt before the nth line that the recorder's code runs from now on, as Ctrl-C may: not at a `try:`, nor where
    the `with` of a lock ends, where Python looks at no signal."""

    FILES = (_recording.__file__, stemma.trace.__file__)

    def __init__(self, nth, function=None, files=FILES):
        """function: the name of the one whose lines count; None: all. files: that have them."""
        self.left, self.at, self.text, self._function, self._files = nth, None, None, function, files

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, _event, _argument):
        if frame.f_code.co_filename not in self._files or self._function not in (None, frame.f_code.co_name):
            return None
        held = set()  # lines of this frame at which it took a lock

        def line(frame, event, _argument):
            if event == "line" and _looks_at_signals(frame, held):
                self._count(frame)
            return line

        return line

    def _count(self, frame):
        self.left -= 1
        if self.left == 0:
            self.at, self.text = f"{frame.f_code.co_filename}:{frame.f_lineno}", _text(frame)
            sys.settrace(None)
            raise KeyboardInterrupt


def _text(frame):
    """The line at which it is, without what is said of it."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).partition("#")[0].strip()


def _looks_at_signals(frame, held):
    """Whether Python may raise before the line. held: gets the lines of locks that are taken."""
    text = _text(frame)
    if not re.fullmatch(r"with .*lock:", text):
        return text != "try:"
    ends = frame.f_lineno in held
    held.add(frame.f_lineno)
    return not ends


def test_ctrl_c_anywhere_while_the_recorder_writes_leaves_the_request_once(tmp_path):
    """Before the end of its line nothing of it stays, and who finds the request at the server, or sends it again, writes it; behind
    it nobody writes it a second time."""
    parts = sent_parts(GROUPS[:1])
    for nth in itertools.count(1):
        with stemma.trace.TraceWriter(tmp_path / "t.jsonl") as recorder:
            recording = _recording.Recording(recorder)
            try:
                with Interrupts(nth) as interrupts:
                    recording.write("r", parts, 1)
            except KeyboardInterrupt:
                recording.found("r", 1)
                recording.write("r", parts, 1)
        assert len(list(stemma.trace.read(tmp_path / "t.jsonl"))) == 1, interrupts.at
        if interrupts.at is None:
            break
    assert nth > 200


def test_ctrl_c_anywhere_where_it_is_recorded_already_writes_nothing(tmp_path):
    parts = sent_parts(GROUPS[:1])
    with stemma.trace.TraceWriter(tmp_path / "t.jsonl") as recorder:
        recording = _recording.Recording(recorder)
        recording.write("r", parts, 1)
        for nth in itertools.count(1):
            with contextlib.suppress(KeyboardInterrupt), Interrupts(nth) as interrupts:
                recording.write("r", parts, 1)
            recording.found("r", 1)
            if interrupts.at is None:
                break
        recording.write("r", parts, 1)
    assert nth > 10 and len(list(stemma.trace.read(tmp_path / "t.jsonl"))) == 1


def send(recording, request_id, parts):
    """What submit does once a server has accepted it."""
    with recording.sending(request_id, parts, []):
        recording.write(request_id, parts, 1)


@pytest.mark.parametrize("num_traces, full_after", [(1, None), (2, None), (1, b"]}]}"), (1, b"\n"), (2, b"\n")])
def test_ctrl_c_anywhere_leaves_a_request_and_what_a_signals_handler_sent_meanwhile_once_in_each_trace(tmp_path, num_traces, full_after):
    """The handler's line waits in the first trace until its thread's own is whole. A disk that is full keeps out its thread's, or the
    handler's behind it. What attach finds is written then, and sent again it is not written twice."""
    outer, inner = sent_parts(GROUPS[:1]), sent_parts(GROUPS[:1])
    inner[0].update.ppo_epochs = 2
    paths = [tmp_path / f"{index}.jsonl" for index in range(num_traces)]

    def check(at):
        for path in paths:
            epochs = sorted(header.get("ppo_epochs", 1) for header, _ in stemma.trace.read(path))
            assert epochs == [1, 2], f"{path.name} after a Ctrl-C at {at}"

    for nth in itertools.count(1):
        with contextlib.ExitStack() as stack:
            traces = [stack.enter_context(stemma.trace.TraceWriter(path)) for path in paths]
            recording, disk = _recording.Recording(Both(*traces) if num_traces > 1 else traces[0]), Disk()
            traces[0]._file, disk.file = disk, traces[0]._file
            disk.then, disk.full_after = [lambda: send(recording, "inner", inner)], full_after
            with contextlib.suppress(KeyboardInterrupt), warnings.catch_warnings(), Interrupts(nth) as interrupts:
                warnings.simplefilter("ignore")  # that a disk is full
                send(recording, "outer", outer)
            traces[0]._file = disk.file
            recording.found("outer", 1)
            recording.found("inner", 1)
            if disk.then:  # the handler did not come
                send(recording, "inner", inner)
            check(interrupts.at)
            for request_id, parts in (("outer", outer), ("inner", inner)):
                recording.write(request_id, parts, 1)
            check(interrupts.at)
        if interrupts.at is None:
            break
    assert nth > 400


class Closing(Disk):
    """Closes the trace behind the end of a line."""

    def __init__(self, recorder):
        super().__init__()
        self._recorder = recorder

    def write(self, data):
        num_bytes = super().write(data)
        if bytes(data) == b"\n":
            self._recorder.close()
        return num_bytes


def test_ctrl_c_behind_a_line_that_a_handler_cut_as_it_closed_the_trace_leaves_the_request_to_be_written(tmp_path):
    parts, path = sent_parts(GROUPS[:1]), tmp_path / "t.jsonl"
    for nth in itertools.count(1):
        with stemma.trace.TraceWriter(path) as recorder:
            recording, disk = _recording.Recording(recorder), Closing(recorder)
            recorder._file, disk.file = disk, recorder._file
            with contextlib.suppress(KeyboardInterrupt), warnings.catch_warnings(), Interrupts(nth, "_write_line") as interrupts:
                warnings.simplefilter("ignore")  # that it was closed
                recording.write("r", parts, 1)
            recorder._file = open(path, "ab", buffering=0)
            recording.write("r", parts, 1)
        assert len(list(stemma.trace.read(path))) == 1, interrupts.at
        if interrupts.at is None:
            break
    assert nth > 40


def test_ctrl_c_anywhere_in_submit_leaves_what_the_server_took_to_be_attached_and_recorded(tmp_path):
    taken = []

    def take(parts, _):
        taken.append(list(parts)[0].update.request.request_id)
        return status(taken[-1], "ACCEPTED", lineage="L1")

    def get(request, context):
        if request.request_id not in taken:
            abort(context, grpc.StatusCode.NOT_FOUND, "never", "NOT_FOUND")
        return status(request.request_id, "ACCEPTED", lineage="L1")

    files, handlers = (*Interrupts.FILES, client.__file__, _future.__file__), {"UpdateActor": take, "GetRequest": get}
    with FakeServer(handlers) as server, stemma.trace.TraceWriter(tmp_path / "t.jsonl") as recorder:
        with stemma.Client(server.address, recorder=recorder) as c:
            for nth in itertools.count(1):
                try:
                    with Interrupts(nth, files=files) as interrupts:
                        c.submit(REWARDED, stemma.grpo(), stemma.adamw(1e-6), request_id=f"r{nth}", shuffle=True, seed=nth)
                except stemma.RequestInterrupted as error:
                    assert error.request_id == f"r{nth}" and error.accepted <= (f"r{nth}" in taken), interrupts.at
                    if f"r{nth}" in taken:
                        c.attach(f"r{nth}")
                except KeyboardInterrupt:
                    assert f"r{nth}" not in taken, interrupts.at
                if interrupts.at is None:
                    break
    assert [f"r{header['seed']}" for header, _ in stemma.trace.read(tmp_path / "t.jsonl")] == taken and nth > len(taken) > 200


def test_a_signals_handler_calls_while_its_thread_notes_what_it_has_seen():
    class Interrupted(int):
        """Compared by what a handler interrupts."""

        def __gt__(self, _):
            c._saw("L1", 3)
            return False

        __lt__ = __gt__

    with stemma.Client("127.0.0.1:1") as c:
        c._saw("L1", 1)
        thread = threading.Thread(target=c._saw, args=("L1", Interrupted(2)), daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()


def test_ctrl_c_between_two_lines_is_told_to_who_waits_for_the_second(tmp_path):
    """One that comes when the lines are dealt with, and who waits is about to be told, is not."""
    path, behind = tmp_path / "t.jsonl", ("self._lines.clear()", "_tell(failed, entry)")
    second = sent_parts(GROUPS)
    second[0].update.ppo_epochs = 2
    for nth in itertools.count(1):
        waiting, told = [], []

        def wait():
            trace.write_parts(second, on_failure=told.append)
            waiting.append(True)

        with stemma.trace.TraceWriter(path) as trace:
            disk = Disk()
            trace._file, disk.file = disk, trace._file
            disk.then = [wait]
            with contextlib.suppress(KeyboardInterrupt), Interrupts(nth, "_write") as interrupts:
                trace.write_parts(sent_parts(GROUPS))
        if waiting and interrupts.text not in behind:
            epochs = [header.get("ppo_epochs") for header, _ in stemma.trace.read(path)]
            assert epochs.count(2) + len(told) == 1, interrupts.at
        if interrupts.at is None:
            break
    assert nth > 20
