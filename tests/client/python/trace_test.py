"""What the recorder writes can be read and sent again, bit for bit."""

import json
import math
import os
import pathlib
import re
import signal
import subprocess
import threading
import tracemalloc

import numpy
import pytest
import stemma
from stemma import _proto, config, groups
from stemma.trace import TraceWriter, read

GROUPS = [stemma.Group("g0", [5, 6, 7], [
    stemma.Rollout([8, 9], mask=[1, 0], old_log_probs=[-1.2, -0.30000001], advantage=0.1),
    stemma.Rollout([], reward=0.25),
    stemma.Rollout([4], advantage=numpy.array([1e-30], dtype=numpy.float32))], stat_group="s")]


def sent_parts(group_list, **limits):
    header = config.fill_message(_proto.UpdateHeader(), {
        "request": {"request_id": "mine", "schedule": "dense"}, "loss": stemma.grpo().as_dict(),
        "adam": stemma.adamw(1e-6).as_dict(), "old": config.source("client"), "ppo_mini_batch_size": 2})
    return groups.parts("update", header, group_list, **limits)


def test_a_recorded_request_comes_back_as_it_was_sent(tmp_path):
    parts = sent_parts(GROUPS)
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_parts(parts)
    [(header, group_list)] = read(tmp_path / "t.jsonl")
    again = groups.parts("update", config.fill_message(_proto.UpdateHeader(), header), group_list)
    assert again[1:] == parts[1:]
    assert again[0].update.loss == parts[0].update.loss and again[0].update.ppo_mini_batch_size == 2
    assert again[0].update.adam.learning_rate == 1e-6


def test_every_float32_comes_back_with_its_bits(tmp_path):
    """Nine digits are needed: with eight, one in seventy of these comes back as a neighbour."""
    bits = numpy.random.default_rng(5).integers(0, 2**32, 4000, dtype=numpy.uint32).view(numpy.float32)
    values = bits[numpy.isfinite(bits)]
    rollout = stemma.Rollout([1] * len(values), old_log_probs=values, advantage=values)
    parts = sent_parts([stemma.Group("g", [1], [rollout])])
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_parts(parts)
    [(_, [group])] = read(tmp_path / "t.jsonl")
    [again] = group["rollouts"]
    for name in ("old_log_probs", "token_advantages"):
        numpy.testing.assert_array_equal(numpy.array(again[name]).astype(numpy.float32).view(numpy.uint32),
                                         values.view(numpy.uint32))


def test_what_json_has_no_number_for_is_base64_and_stemma_reads_it(tmp_path):
    """NaN may stand where the mask is 0."""
    rollout = stemma.Rollout([1, 2], advantage=1.0, mask=[0, 1], old_log_probs=[math.nan, -1.0])
    parts = sent_parts([stemma.Group("g", [1], [rollout])])
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_parts(parts)
    [(header, groups)] = read(tmp_path / "t.jsonl")
    again = sent_parts(groups)
    assert again[1].group.rollouts[0].old_log_probs == parts[1].group.rollouts[0].old_log_probs
    stemma_cli = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "bin/stemma"
    subprocess.run([stemma_cli, "trace", "check", tmp_path / "t.jsonl"], check=True, capture_output=True, timeout=60)


def random_group(uid, num_prompt, num_rollouts, num_response):
    random = numpy.random.default_rng(7)
    return stemma.Group(uid, random.integers(0, 1000, num_prompt, dtype=numpy.int32), [
        stemma.Rollout(random.integers(0, 1000, num_response, dtype=numpy.int32), advantage=random.random(num_response),
                       mask=random.integers(0, 2, num_response), old_log_probs=-random.random(num_response)) for _ in range(num_rollouts)])


def test_a_large_request_is_written_as_base64_in_little_memory_and_reads_back_the_same(tmp_path):
    """A million tokens, in groups that come in several messages."""
    path = tmp_path / "t.jsonl"
    parts = sent_parts([random_group(f"g{g}", 1000, 10, 10_000) for g in range(10)], message_bytes_max=1 << 20)
    num_bytes = sum(part.ByteSize() for part in parts)
    with TraceWriter(path) as writer:
        tracemalloc.start()
        writer.write_parts(parts)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert sum(part.HasField("more") for part in parts) > 0 and num_bytes > 12e6 and peak_bytes < 2 * num_bytes
    [(header, group_list)] = read(path)
    assert isinstance(group_list[0]["prompt_tokens"], str) and isinstance(group_list[1]["rollouts"][0]["response_mask"], str)
    again = groups.parts("update", config.fill_message(_proto.UpdateHeader(), header), group_list, message_bytes_max=1 << 20)
    assert again[1:] == parts[1:]
    stemma_cli = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "bin/stemma"
    subprocess.run([stemma_cli, "trace", "check", path], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("num_prompt, form", [(65_516, list), (65_517, str)])
def test_a_request_of_up_to_65536_tokens_is_written_as_numbers(tmp_path, num_prompt, form):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_parts(sent_parts([random_group("g", num_prompt, 2, 10)]))
    [(_, [group])] = read(tmp_path / "t.jsonl")
    arrays = [group["prompt_tokens"], *(rollout[name] for rollout in group["rollouts"]
                                        for name in ("response_tokens", "response_mask", "token_advantages", "old_log_probs"))]
    assert {type(array) for array in arrays} == {form}


def test_a_group_in_several_messages_is_one_group_in_the_trace(tmp_path):
    many = [stemma.Group("g", [1], [stemma.Rollout(list(range(40))) for _ in range(20)])]
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_parts(sent_parts(many, message_bytes_max=500))
    [(_, [group])] = read(tmp_path / "t.jsonl")
    assert [r["rollout_id"] for r in group["rollouts"]] == [f"g/{i}" for i in range(20)]


def test_ids_and_schedule_are_not_recorded(tmp_path):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_parts(sent_parts(GROUPS))
    first, line = (tmp_path / "t.jsonl").read_text().splitlines()
    assert json.loads(first) == {"schema": "stemma.trace.v1"}
    assert "request" not in json.loads(line)["header"]
    assert json.loads(line)["header"]["old"] == {"from": "CLIENT"}


def test_objects_can_be_written_without_a_client(tmp_path):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(GROUPS, stemma.cross_entropy(), stemma.adamw(1e-3), ppo_mini_batch_size=1)
    [(header, _)] = read(tmp_path / "t.jsonl")
    assert header["loss"]["loss_mode"] == "cross_entropy" and header["ppo_mini_batch_size"] == 1


CARRYING = [stemma.Group(f"g{g}", [5, 6], [stemma.Rollout([8, 9], reward=float(r), old_log_probs=[-1.2, -0.3],
                                                          ref_log_prob=[-1.0, -0.5]) for r in range(2)]) for g in range(4)]
REWARDED = [stemma.Group("g", [5, 6], [stemma.Rollout([8, 9], reward=float(r)) for r in range(2)])]


@pytest.mark.parametrize("groups_to_send, loss, options, header", [
    (REWARDED, stemma.grpo(), {}, {"old": {"from": "ON_POLICY"}}),
    (REWARDED, stemma.grpo(), {"epochs": 2}, {"old": {"from": "WEIGHTS", "weights": "policy"}, "ppo_epochs": 2}),
    (REWARDED, stemma.grpo(), {"ppo_epochs": 2}, {"old": {"from": "WEIGHTS", "weights": "policy"}, "ppo_epochs": 2}),
    (REWARDED, stemma.grpo(old="policy").as_dict(), {"old": {"from": "ON_POLICY"}}, {"old": {"from": "ON_POLICY"}}),
    (CARRYING, stemma.grpo(kl_loss_coef=0.1, kl_loss_type="k3"), {"mini_batch": 2, "shuffle": True, "seed": 3},
     {"old": {"from": "CLIENT"}, "ref": {"from": "CLIENT"}, "ppo_mini_batch_size": 2, "shuffle": True, "seed": 3}),
    (REWARDED, stemma.reinforce(), {}, {})], ids=["on policy", "epochs", "the header's epochs", "a dict", "client", "none"])
def test_what_is_written_without_a_client_is_what_submit_would_send_and_passes_the_check(tmp_path, groups_to_send, loss,
                                                                                        options, header):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write((group for group in groups_to_send), loss, stemma.adamw(1e-6), **options)
    [(written, _)] = read(path)
    assert {key: value for key, value in written.items() if key not in ("loss", "adam")} == header
    stemma_cli = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "bin/stemma"
    done = subprocess.run([stemma_cli, "trace", "check", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("loss, adam, says", [
    (None, stemma.adamw(1e-6), "loss is required"), (stemma.grpo, stemma.adamw(1e-6), "loss is the function grpo: call it"),
    (stemma.grpo(), 1e-6, r"adam is 1e-06: pass adam=stemma.adamw\(1e-06\)"), ("grpo", stemma.adamw(1e-6), "loss is 'grpo'"),
    (stemma.grpo(), None, "adam is required"), (stemma.grpo(), stemma.adamw("1e-6"), "adam.learning_rate is '1e-6'"),
    (stemma.grpo(), stemma.adamw(math.nan), "adam.learning_rate is nan: pass a finite number"),
    (stemma.grpo(temperature=math.inf), stemma.adamw(1e-6), "loss.temperature is inf: pass a finite number")])
def test_what_cannot_be_written_is_refused_as_submit_refuses_it_and_leaves_the_trace_as_it_was(tmp_path, loss, adam, says):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        with pytest.raises(ValueError, match=f"^{says}"):
            writer.write(REWARDED, loss, adam)
        writer.write(REWARDED, stemma.grpo(), stemma.adamw(1e-6))
    assert len(list(read(tmp_path / "t.jsonl"))) == 1


def test_a_reward_that_is_no_number_is_named_in_whichever_message_it_lies(tmp_path):
    rollouts = [stemma.Rollout(list(range(40)), reward=math.nan if i == 18 else 1.0) for i in range(20)]
    parts = sent_parts([stemma.Group("a", [1], []), stemma.Group("b", [1], rollouts)], message_bytes_max=500)
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        with pytest.raises(ValueError, match=r"^groups\[1\].rollouts\[18\].reward is nan: pass a finite number$"):
            writer.write_parts(parts)


def test_a_line_may_be_as_long_as_the_commands_read():
    header = pathlib.Path(__file__).parents[3] / "common" / "trace" / "trace.h"
    assert "kTraceLineBytesMax = size_t{1} << 30;" in header.read_text() and stemma.trace._LINE_BYTES_MAX == 1 << 30


def test_a_line_that_no_command_reads_is_refused_and_leaves_the_trace_as_it_was(tmp_path, monkeypatch):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_parts(sent_parts(GROUPS))
    written = (tmp_path / "t.jsonl").read_text()
    length = len(written.splitlines()[1])
    monkeypatch.setattr(stemma.trace, "_LINE_BYTES_MAX", length)
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_parts(sent_parts(GROUPS))
        monkeypatch.setattr(stemma.trace, "_LINE_BYTES_MAX", length - 1)
        says = f"the request's line is {length} bytes long, at most {length - 1} are read: put fewer groups into a request"
        with pytest.raises(ValueError, match=f"^{says}$"):
            writer.write_parts(sent_parts(GROUPS))
    assert (tmp_path / "t.jsonl").read_text() == written
    with pytest.raises(ValueError, match=rf"t\.jsonl:2: {says}$"):
        list(read(tmp_path / "t.jsonl"))
    monkeypatch.setattr(stemma.trace, "_LINE_BYTES_MAX", length)
    assert len(list(read(tmp_path / "t.jsonl"))) == 1


class Disk:
    """A writer's file whose n-th write from now on writes a part of what it is given, and then does something. Later ones write."""

    def __init__(self, writer, nth, then):
        self._file, self._left, self._then = writer._file, nth, then
        writer._file = self

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data):
        self._left -= 1
        count = self._file.write(data[:1] if self._left == 0 else data)
        if self._left == 0:
            self._then()
        return count


def raising(error):
    def fail():
        raise error
    return fail


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("nth", [1, 3])
def test_a_line_that_does_not_come_to_its_end_leaves_nothing(tmp_path, error, nth):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        Disk(writer, nth, raising(error))
        with pytest.raises(type(error)):
            writer.write_parts(sent_parts(GROUPS))
        writer.write_parts(sent_parts(GROUPS[:1] * 2))
    [(_, group_list)] = read(tmp_path / "t.jsonl")
    assert len(group_list) == 2


def test_what_a_line_left_is_taken_back_before_the_next_where_it_could_not_be_at_once(tmp_path, monkeypatch):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        Disk(writer, 3, raising(KeyboardInterrupt()))
        with monkeypatch.context() as broken:
            broken.setattr(stemma.trace.os, "ftruncate", lambda *_: raising(OSError("not now"))())
            with pytest.raises(KeyboardInterrupt):
                writer.write_parts(sent_parts(GROUPS))
            with pytest.raises(OSError, match="not now"):
                writer.write_parts(sent_parts(GROUPS))
        writer.write_parts(sent_parts(GROUPS))
    assert len(list(read(tmp_path / "t.jsonl"))) == 1


def test_a_disk_that_takes_parts_has_whole_lines(tmp_path):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        Disk(writer, 2, lambda: None)
        writer.write_parts(sent_parts(GROUPS))
    assert len(list(read(tmp_path / "t.jsonl"))) == 1


@pytest.mark.parametrize("error", [None, SystemExit(1)])
def test_a_signals_handler_that_sends_while_its_thread_records_has_its_own_line(tmp_path, error):
    def handle(*_):
        writer.write_parts(sent_parts([stemma.Group("small", [1], [])]))
        if error is not None:
            raise error

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with TraceWriter(tmp_path / "t.jsonl") as writer:
            Disk(writer, 3, lambda: signal.raise_signal(signal.SIGUSR1))
            if error is None:
                writer.write_parts(sent_parts(GROUPS))
            else:
                with pytest.raises(SystemExit):
                    writer.write_parts(sent_parts(GROUPS))
    finally:
        signal.signal(signal.SIGUSR1, before)
    uids = [group["uid"] for _, group_list in read(tmp_path / "t.jsonl") for group in group_list]
    assert uids == (["g0"] if error is None else []) + ["small"]


NUM_WRITES = 9  # of a line of GROUPS: header, group, three rollouts and two commas, the end, a newline


@pytest.mark.parametrize("exits", [True, False])
@pytest.mark.parametrize("nth", [1, 3, NUM_WRITES])
def test_a_signals_handler_that_closes_in_the_middle_of_a_line_ends_its_process_and_leaves_whole_lines(tmp_path, nth, exits):
    def handle():
        writer.close()
        if exits:
            raise SystemExit(1)

    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write_parts(sent_parts(GROUPS[:1] * 2))
        Disk(writer, nth, handle)
        with pytest.raises(SystemExit if exits else ValueError, match=None if exits else "closed"):
            writer.write_parts(sent_parts(GROUPS))
    assert [len(group_list) for _, group_list in read(tmp_path / "t.jsonl")] == [2]


def test_a_signals_handler_that_closes_a_pipe_ends_its_process(tmp_path):
    """No pipe can be cut."""
    def handle():
        writer.close()
        raise SystemExit(1)

    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with TraceWriter(tmp_path / "pipe") as writer:
            Disk(writer, 3, handle)
            with pytest.raises(SystemExit):
                writer.write_parts(sent_parts(GROUPS))
    finally:
        os.close(reader)


def test_a_line_comes_to_its_end_before_another_thread_closes(tmp_path):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        closing = threading.Thread(target=writer.close)
        Disk(writer, 3, lambda: (closing.start(), closing.join(0.05)))
        writer.write_parts(sent_parts(GROUPS))
        closing.join()
    assert len(list(read(tmp_path / "t.jsonl"))) == 1


def in_child(call):
    """What the call returns, as text, or its error, in a process that is forked off."""
    ours, childs = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # it may wait for a lock that nobody lets go of
        try:
            os.write(childs, str(call()).encode())
        except BaseException as error:
            os.write(childs, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(childs)
    with open(ours, "rb") as told:
        return told.read().decode()


def test_a_process_that_was_forked_off_writes_no_line_and_cuts_none(tmp_path):
    """Each would count its own lines alone, and take back the other's behind them."""
    def fork():
        told.append(in_child(lambda: writer.write_parts(sent_parts(GROUPS))))
        told.append(in_child(writer.close))

    told = []
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        Disk(writer, 3, lambda: on_thread(fork))  # while this thread holds the trace's lock
        writer.write_parts(sent_parts(GROUPS))
        writer.write_parts(sent_parts(GROUPS))
    assert re.match(rf"ValueError: this trace in {tmp_path}/t.jsonl is of process {os.getpid()}, from which this one was forked off: make a "
                    "stemma.trace.TraceWriter in each process", told[0]), told[0]
    assert told[1] == "None" and len(list(read(tmp_path / "t.jsonl"))) == 2


def on_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize("own, handlers", [(SystemExit(1), OSError("full")), (OSError("full"), SystemExit(1))])
def test_what_ends_the_process_is_not_taken_for_a_disk_that_is_full(tmp_path, own, handlers):
    def handle():
        writer.write_parts(sent_parts(GROUPS), on_failure=told.append)
        Disk(writer, 1, raising(handlers))
        raise own

    told = []
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        Disk(writer, 3, handle)
        with pytest.raises(SystemExit):
            writer.write_parts(sent_parts(GROUPS))
    assert list(read(tmp_path / "t.jsonl")) == [] and told == [handlers]


def test_a_line_of_a_signals_handler_that_fails_is_told_as_its_own_and_the_other_is_written(tmp_path):
    def handle():
        writer.write(REWARDED, stemma.grpo(), stemma.adamw(1e-6))
        Disk(writer, NUM_WRITES - 3 + 2, raising(OSError(28, "full")))  # this write took a part of its piece

    with TraceWriter(tmp_path / "t.jsonl") as writer:
        Disk(writer, 3, handle)
        with pytest.warns(RuntimeWarning, match="that a signal's handler wrote to a trace could not be written: OSError: .* full"):
            writer.write_parts(sent_parts(GROUPS))
    [(_, group_list)] = read(tmp_path / "t.jsonl")
    assert group_list[0]["uid"] == "g0"


@pytest.mark.parametrize("text, line, says", [
    (b"{}\n", 1, "the first line must hold"), (b'{"schema": "stemma.trace.v1"}\n{"header": {}\n', 2, "Expecting"),
    (b'{"schema": "stemma.trace.v1"}\n{"header": {}}\n', 2, "must hold a header"),
    (b'{"schema": "stemma.trace.v1"}\n\n{"\xff', 3, "not UTF-8: invalid start byte at byte 3$")])
def test_a_broken_line_is_named(tmp_path, text, line, says):
    (tmp_path / "t.jsonl").write_bytes(text)
    with pytest.raises(ValueError, match=rf"t\.jsonl:{line}: {says}"):
        list(read(tmp_path / "t.jsonl"))
