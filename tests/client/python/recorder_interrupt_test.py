"""A Ctrl-C that comes while the recorder of a client writes, wherever it comes."""

import contextlib
import itertools
import linecache
import sys

import stemma
from stemma import _recording

from trace_test import GROUPS, sent_parts


class Interrupts:
    """Raises KeyboardInterrupt before the nth line that the recorder's code runs from now on, as Ctrl-C may: not at a `try:`, where
    Python looks at no signal."""

    FILES = (_recording.__file__, stemma.trace.__file__)

    def __init__(self, nth):
        self.left, self.at = nth, None

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, _event, _argument):
        return self._line if frame.f_code.co_filename in self.FILES else None

    def _line(self, frame, event, _argument):
        if event != "line" or linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() == "try:":
            return self._line
        self.left -= 1
        if self.left == 0:
            self.at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            sys.settrace(None)
            raise KeyboardInterrupt
        return self._line


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
