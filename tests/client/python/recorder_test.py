"""The recorder of a client: each request once, and nothing that it does hides what the server has."""

import dataclasses
import gc
import warnings

import grpc
import pytest
import stemma
from stemma import _recording

from client_test import client_of, status, update
from fake_server import FakeServer, abort
from trace_test import GROUPS, sent_parts
from waiting_test import ACCEPTED


def test_a_recorder_that_cannot_write_hides_no_accepted_request(tmp_path):
    recorder = stemma.trace.TraceWriter(tmp_path / "trace.jsonl")
    recorder.close()
    with FakeServer(ACCEPTED) as server, stemma.Client(server.address, recorder=recorder) as client:
        with pytest.warns(RuntimeWarning, match="request r was accepted, and may not be recorded: the recorder raised ValueError"):
            assert update(client, wait=False, request_id="r").request_id == "r"


def test_a_recorder_that_fails_where_warnings_are_errors_takes_no_future_away(tmp_path, caplog):
    recorder = stemma.trace.TraceWriter(tmp_path / "trace.jsonl")
    recorder.close()
    with FakeServer(ACCEPTED) as server, stemma.Client(server.address, recorder=recorder) as client:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert update(client, wait=False, request_id="r").request_id == "r"
    assert "request r was accepted, and may not be recorded: the recorder raised ValueError" in caplog.text


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


def test_another_payload_under_an_id_whose_weights_are_lost_is_recorded_too():
    recorder = Recorder()
    with FakeServer(ACCEPTED) as server, stemma.Client(server.address, recorder=recorder) as client:
        for options in ({}, {}, {"epochs": 2}, {"epochs": 2, "trace_step": 0}, {}):
            update(client, wait=False, request_id="r", **options)
            client._lineage = "L-2"  # a repeat may expect another lineage than the request did
        for prompt in ([1, 2], [1, 3], [1, 3]):
            client.submit([stemma.Group("g0", prompt, [stemma.Rollout([4], advantage=1.0)])], stemma.grpo(), stemma.adamw(1e-6),
                          request_id="r")
    assert recorder.ids == ["r"] * 5


def test_clients_that_share_a_recorder_record_a_request_once():
    recorder = Recorder()
    with FakeServer(ACCEPTED) as server:
        for _ in range(2):
            with stemma.Client(server.address, recorder=recorder) as client:
                update(client, wait=False, request_id="r")
    assert recorder.ids == ["r"]


def test_recorders_of_which_nothing_can_be_remembered_are_recorders():
    class Slots(Recorder):
        __slots__ = ()
        __hash__ = None

    recorder = Slots()
    with FakeServer(ACCEPTED) as server, stemma.Client(server.address, recorder=recorder) as client:
        for request_id in ("a", "a", "b"):
            update(client, wait=False, request_id=request_id)
    assert recorder.ids == ["a", "b"]


def test_a_request_of_a_signals_handler_that_a_full_disk_keeps_out_is_the_one_that_is_told_of_and_recorded_later(tmp_path):
    path, disk = tmp_path / "trace.jsonl", Disk()
    recorder = stemma.trace.TraceWriter(path)
    recorder._file, disk.file = disk, recorder._file
    with FakeServer(ACCEPTED) as server, stemma.Client(server.address, recorder=recorder) as client, recorder:
        disk.then = [lambda: update(client, wait=False, request_id="inner", epochs=2)]
        disk.full_after = b"\n"
        with pytest.warns(RuntimeWarning, match="request inner was accepted, and may not be recorded: the recorder raised OSError: full"):
            update(client, wait=False, request_id="outer")
        for options in ({"request_id": "outer"}, {"request_id": "inner", "epochs": 2}) * 2:
            update(client, wait=False, **options)
    assert [header.get("ppo_epochs", 1) for header, _ in stemma.trace.read(path)] == [1, 2]


class Uploading(stemma.trace.TraceWriter):
    """Fails behind the end of each line."""

    def write_parts(self, parts, on_failure=None):
        super().write_parts(parts, on_failure)
        raise OSError("the archive is away")


def test_what_a_recorder_raises_behind_its_line_is_a_warning_and_the_request_is_recorded_once(tmp_path):
    with FakeServer(ACCEPTED) as server, Uploading(tmp_path / "t.jsonl") as recorder:
        with stemma.Client(server.address, recorder=recorder) as client:
            with pytest.warns(RuntimeWarning, match="request r was accepted, and may not be recorded: the recorder raised OSError: the archive"):
                update(client, wait=False, request_id="r")
            update(client, wait=False, request_id="r")
    assert len(list(stemma.trace.read(tmp_path / "t.jsonl"))) == 1


class Both:
    """Writes to two traces."""

    def __init__(self, *traces):
        self._traces = traces

    def write_parts(self, parts, on_failure=None):
        for trace in self._traces:
            trace.write_parts(parts, on_failure)


def test_a_recorder_of_two_traces_leaves_each_its_own_lines_where_a_disk_is_full(tmp_path):
    """The second is shorter: a line that is taken back leaves each as long as it was."""
    paths, parts, disk = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"], sent_parts(GROUPS[:1]), Disk()
    with stemma.trace.TraceWriter(paths[0]) as longer, stemma.trace.TraceWriter(paths[1]) as shorter:
        longer.write_parts(parts)
        longer._file, disk.file, disk.full_after = disk, longer._file, b"\n"
        _recording.Recording(Both(longer, shorter)).write("r", parts, 1)
        with pytest.raises(OSError, match="full"):
            longer.write_parts(parts)
        full = Disk()
        shorter._file, full.file, full.full_after = full, shorter._file, b"\n"
        shorter.write_parts(parts)
        with pytest.warns(RuntimeWarning, match="request s was accepted, and may not be recorded: the recorder raised OSError: full"):
            _recording.Recording(Both(longer, shorter)).write("s", parts, 1)
    assert [len(list(stemma.trace.read(path))) for path in paths] == [3, 2]


class Disk:
    """A file that does what is in `then` at its next write, and fails once after it was given `full_after`."""

    def __init__(self):
        self.file, self.then, self.full_after, self._is_full = None, [], None, False

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        if self.then:
            self.then.pop()()
        if self._is_full:
            self.full_after, self._is_full = None, False
            raise OSError("full")
        self._is_full = self.full_after is not None and bytes(data) == self.full_after
        return self.file.write(data)


@dataclasses.dataclass(frozen=True)
class Equal:
    """A recorder that is equal to another one."""

    ids: list = dataclasses.field(default_factory=list, compare=False)

    def write_parts(self, parts):
        self.ids.append(parts[0].update.request.request_id)


def test_recorders_that_are_equal_each_have_what_their_own_clients_sent():
    recorders = [Equal(), Equal()]
    assert recorders[0] == recorders[1]
    with FakeServer(ACCEPTED) as server:
        for recorder in recorders * 2:
            with stemma.Client(server.address, recorder=recorder) as client:
                update(client, wait=False, request_id="r")
    assert [recorder.ids for recorder in recorders] == [["r"], ["r"]]


def test_a_recorder_that_is_gone_is_forgotten():
    """Another object gets its id()."""
    recorder = Recorder()
    key = id(recorder)
    _recording.Recording(recorder)
    assert key in _recording._MEMORIES
    del recorder
    gc.collect()
    assert key not in _recording._MEMORIES


def test_a_recorder_that_gets_the_id_of_one_that_is_not_forgotten_has_a_memory_of_its_own(monkeypatch):
    """A Ctrl-C may come where the first would be forgotten."""
    first, second = Recorder(), Recorder()
    _recording.Recording(first).write("r", sent_parts(GROUPS), 1)
    monkeypatch.setitem(_recording._MEMORIES, id(second), _recording._MEMORIES[id(first)])
    for _ in range(2):
        _recording.Recording(second).write("r", sent_parts(GROUPS), 1)
    assert len(second.ids) == 1


FOUND = {**ACCEPTED, "GetRequest": lambda request, _: status(request.request_id, "ACCEPTED")}


def lose_answers(client, monkeypatch, error):
    """Lets requests reach the server, and their answers not reach the client."""
    sent = client._sent

    def send(*arguments):
        sent(*arguments)
        raise error

    monkeypatch.setattr(client, "_sent", send)


@pytest.mark.parametrize("error, raised", [
    (stemma.StemmaError("DEADLINE_EXCEEDED", "", "late"), TimeoutError), (stemma.StemmaError("UNAVAILABLE", "", "away"), stemma.StemmaError),
    (KeyboardInterrupt(), stemma.RequestInterrupted)])
def test_a_request_that_attach_finds_is_recorded_then(monkeypatch, error, raised):
    recorder = Recorder()
    with FakeServer(FOUND) as server, stemma.Client(server.address, recorder=recorder) as client:
        lose_answers(client, monkeypatch, error)
        with pytest.raises(raised):
            update(client, wait=False, request_id="r", timeout_s=0 if raised is TimeoutError else None)
        assert recorder.ids == []
        for _ in range(2):
            client.attach("r")
        assert recorder.ids == ["r"]
        monkeypatch.undo()
        update(client, wait=False, request_id="r")
    assert recorder.ids == ["r"]


def test_ctrl_c_while_the_recorder_writes_loses_nothing_that_attach_finds():
    recorder = Recorder(KeyboardInterrupt())
    with FakeServer(FOUND) as server, stemma.Client(server.address, recorder=recorder) as client:
        with pytest.raises(stemma.RequestInterrupted):
            update(client, wait=False, request_id="r")
        client.attach("r")
    assert recorder.ids == ["r"]


def test_what_the_server_refused_is_not_what_attach_finds_under_its_id(monkeypatch):
    recorder = Recorder()
    with FakeServer(FOUND) as server, stemma.Client(server.address, recorder=recorder) as client:
        lose_answers(client, monkeypatch, stemma.StemmaError("ALREADY_EXISTS", "REQUEST_ID_REUSED", "another payload"))
        with pytest.raises(stemma.StemmaError, match="REQUEST_ID_REUSED"):
            update(client, wait=False, request_id="r")
        client.attach("r")
    assert recorder.ids == []


def test_the_messages_of_the_newest_requests_that_were_not_heard_of_are_kept(monkeypatch):
    recorder = Recorder()
    with FakeServer(FOUND) as server, stemma.Client(server.address, recorder=recorder) as client:
        lose_answers(client, monkeypatch, KeyboardInterrupt())
        for request_id in "abcde":
            with pytest.raises(stemma.RequestInterrupted):
                update(client, wait=False, request_id=request_id)
        for request_id in "abcde":
            client.attach(request_id)
    assert recorder.ids == list("bcde")


def interrupted(client, **options):
    with pytest.raises(stemma.RequestInterrupted):
        update(client, wait=False, request_id="r", **options)


@pytest.mark.parametrize("later", [{"epochs": 2}, {"trace_step": 0}])
def test_of_two_payloads_that_may_be_the_servers_attach_records_neither(monkeypatch, later):
    """A trace's step is no part of the payload."""
    recorder = Recorder()
    with FakeServer(FOUND) as server, stemma.Client(server.address, recorder=recorder) as client:
        lose_answers(client, monkeypatch, KeyboardInterrupt())
        interrupted(client)
        interrupted(client, **later)
        client.attach("r")
        is_same = "trace_step" in later
        assert recorder.ids == (["r"] if is_same else [])
        interrupted(client, **later)
        client.attach("r")
        assert recorder.ids == (["r"] if is_same else [])
        monkeypatch.undo()
        update(client, wait=False, request_id="r", **later)  # its acceptance says which one it is
    assert recorder.ids == ["r"]


def test_an_accepted_payload_is_the_servers_whatever_was_sent_before(monkeypatch):
    recorder = Recorder(KeyboardInterrupt())
    with FakeServer(FOUND) as server, stemma.Client(server.address, recorder=recorder) as client:
        with monkeypatch.context() as away:
            lose_answers(client, away, KeyboardInterrupt())
            interrupted(client, epochs=2)
        interrupted(client)  # in the recorder
        client.attach("r")
    assert recorder.ids == ["r"]


def test_what_is_lost_under_the_id_of_a_recorded_request_is_not_what_attach_finds(monkeypatch):
    recorder = Recorder()
    with FakeServer(FOUND) as server, stemma.Client(server.address, recorder=recorder) as client:
        update(client, wait=False, request_id="r")
        lose_answers(client, monkeypatch, KeyboardInterrupt())
        interrupted(client, epochs=2)
        client.attach("r")
    assert recorder.ids == ["r"]


def test_that_a_server_may_have_another_payload_is_remembered_longer_than_its_messages(monkeypatch):
    monkeypatch.setattr(_recording, "_UNHEARD_MAX", 1)
    recorder = Recorder()
    with FakeServer(FOUND) as server, stemma.Client(server.address, recorder=recorder) as client:
        lose_answers(client, monkeypatch, KeyboardInterrupt())
        interrupted(client)
        with pytest.raises(stemma.RequestInterrupted):
            update(client, wait=False, request_id="other")
        interrupted(client, epochs=2)
        for request_id in ("r", "other"):
            client.attach(request_id)
    assert recorder.ids == ["other"]


def test_what_attach_finds_rolled_back_is_not_recorded(monkeypatch):
    """It may have been sent by another process, with another payload."""
    recorder = Recorder()
    handlers = {**ACCEPTED, "GetRequest": lambda request, _: status(request.request_id, "ROLLED_BACK")}
    with FakeServer(handlers) as server, stemma.Client(server.address, recorder=recorder) as client:
        lose_answers(client, monkeypatch, KeyboardInterrupt())
        interrupted(client)
        client.attach("r")
    assert recorder.ids == []


REFUSALS = {"SERVER_MEMORY": grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_ID_REUSED": grpc.StatusCode.ALREADY_EXISTS,
            "LINEAGE_MISMATCH": grpc.StatusCode.ABORTED}


@pytest.mark.parametrize("first, reason, recorded", [
    ("lost", "SERVER_MEMORY", ["r"]), ("lost", "REQUEST_ID_REUSED", []), ("lost", "LINEAGE_MISMATCH", []),
    ("RECOVERING", "SERVER_MEMORY", []), (None, "SERVER_MEMORY", [])])
def test_a_refusal_of_the_second_try_does_not_say_that_the_server_has_not_taken_the_first(first, reason, recorded):
    def update_actor(parts, context):
        list(parts)
        if answers.pop():
            abort(context, grpc.StatusCode.UNAVAILABLE, "gone", "" if first == "lost" else first)
        abort(context, REFUSALS[reason], "refused", reason)

    answers, recorder = [None, first] if first else [None], Recorder()
    with FakeServer({**FOUND, "UpdateActor": update_actor}) as server, client_of(server, recorder=recorder) as client:
        with pytest.raises(stemma.StemmaError, match="refused"):
            update(client, wait=False, request_id="r")
        client.attach("r")
    assert recorder.ids == recorded and not answers


def test_a_request_whose_client_is_closed_while_it_is_sent_is_recorded_when_attach_finds_it():
    def update_actor(parts, _):
        request_id = list(parts)[0].update.request.request_id
        clients[0].close()
        return status(request_id, "ACCEPTED")

    recorder = Recorder()
    with FakeServer({**FOUND, "UpdateActor": update_actor}) as server:
        clients = [client_of(server, recorder=recorder) for _ in range(2)]
        with pytest.raises(stemma.StemmaError, match="was closed while the call ran"):
            update(clients[0], wait=False, request_id="r")
        clients[1].attach("r")
        clients[1].close()
    assert recorder.ids == ["r"]
