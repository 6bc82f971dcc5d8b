"""The recorder of a client: each request once, and nothing that it does hides what the server has."""

import warnings

import pytest
import stemma
from stemma import _recording

from client_test import update
from fake_server import FakeServer
from waiting_test import ACCEPTED


def test_a_recorder_that_cannot_write_hides_no_accepted_request(tmp_path):
    recorder = stemma.trace.TraceWriter(tmp_path / "trace.jsonl")
    recorder.close()
    with FakeServer(ACCEPTED) as server, stemma.Client(server.address, recorder=recorder) as client:
        with pytest.warns(RuntimeWarning, match="request r was accepted, and the recorder could not write it"):
            assert update(client, wait=False, request_id="r").request_id == "r"


def test_a_recorder_that_fails_where_warnings_are_errors_takes_no_future_away(tmp_path, caplog):
    recorder = stemma.trace.TraceWriter(tmp_path / "trace.jsonl")
    recorder.close()
    with FakeServer(ACCEPTED) as server, stemma.Client(server.address, recorder=recorder) as client:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert update(client, wait=False, request_id="r").request_id == "r"
    assert "request r was accepted, and the recorder could not write it" in caplog.text


class Recorder:
    """Raises what is to come, and keeps the ids of the rest."""

    def __init__(self, *raised):
        self.ids, self._raised = [], list(raised)

    def write_parts(self, parts):
        if self._raised:
            raise self._raised.pop()
        self.ids.append(parts[0].update.request.request_id)


def test_ctrl_c_while_the_recorder_writes_says_that_the_server_has_the_request():
    recorder = Recorder(KeyboardInterrupt())
    with FakeServer(ACCEPTED) as server, stemma.Client(server.address, recorder=recorder) as client:
        with pytest.raises(stemma.RequestInterrupted) as error:
            update(client, wait=False, request_id="r")
        assert (error.value.request_id, error.value.accepted) == ("r", True)
        update(client, wait=False, request_id="r")  # what was not written then is now
    assert recorder.ids == ["r"]


def test_a_request_that_is_sent_again_is_recorded_once_and_the_oldest_ids_are_forgotten(monkeypatch):
    monkeypatch.setattr(_recording, "_IDS_MAX", 2)
    recorder = Recorder(OSError("full"))
    with FakeServer(ACCEPTED) as server, stemma.Client(server.address, recorder=recorder) as client:
        with pytest.warns(RuntimeWarning, match="OSError: full"):
            update(client, wait=False, request_id="a")
        for request_id in ("a", "a", "b", "a", "c", "b", "c", "a"):
            update(client, wait=False, request_id=request_id)
    assert recorder.ids == ["a", "b", "c", "a"]
