"""F10, F11: one spelling is as good as another, and lines that say what happened and when."""

import datetime
import json
import re
import signal
import time

import pytest

from e2e.errors.good_request import Request, refusal
from e2e.errors.server import MODEL, Cluster, start, wait_for
from stemma import _proto

GOOD = ("--model", MODEL)


def info(cluster):
    return cluster.stub.GetServerInfo(_proto.GetServerInfoRequest()).config


@pytest.mark.parametrize("dtype, short", [("bf16", "bf16"), ("bfloat16", "bf16"), ("float32", "fp32"), ("float64", "fp64")])
def test_f10_either_name_of_a_dtype_is_taken_on_the_command_line_and_in_run_yaml(dtype, short):
    with Cluster(worker=False, flags=("--dtype", dtype)) as cluster:
        assert info(cluster).dtype == short
    with Cluster(worker=False, config=f"dtype: {dtype}\n") as cluster:
        assert info(cluster).dtype == short


def test_f10_a_dtype_that_is_none_is_refused_with_both_names(tmp_path):
    code, text = start(tmp_path, *GOOD, "--dtype", "float8")
    assert code == 2 and '"float8" is not one of fp32, fp64, bf16 (float32, float64, bfloat16)' in text, text


@pytest.mark.parametrize("size, count", [("2GB", 2 << 30), ("2 GiB", 2 << 30), ("1.5g", 3 << 29), ("2147483648", 2 << 30)])
def test_f10_sizes_mean_the_same_in_run_yaml_and_on_the_command_line(size, count):
    with Cluster(worker=False, config=f"memory_budget_bytes: {size}\nlimits:\n  message_bytes: 1MB\n") as cluster:
        assert info(cluster).memory_budget_bytes == count and info(cluster).limits.message_bytes == 1 << 20
    with Cluster(worker=False, flags=("--memory-budget", size)) as cluster:
        assert info(cluster).memory_budget_bytes == count


@pytest.mark.parametrize("size", ["2 apples", "-1", "1e9", "", "GB", "99999999999999999999", "1.2.3GB", "17179869184GB"])
def test_f10_a_size_that_is_none_is_refused_by_name(tmp_path, size):
    (tmp_path / "run.yaml").write_text(f'memory_budget_bytes: "{size}"\n')
    code, text = start(tmp_path, *GOOD, "--config", tmp_path / "run.yaml")
    assert code == 2 and "memory_budget_bytes" in text and "is not a size" in text, text
    if size:
        code, text = start(tmp_path, *GOOD, f"--memory-budget={size}")
        assert code == 2 and "--memory-budget" in text and "is not a size" in text, text


def test_f10_a_budget_that_is_too_small_names_the_least_in_one_sentence(tmp_path):
    code, text = start(tmp_path, *GOOD, "--memory-budget", "1KB")
    assert code == 2 and text.count("\n") == 1, text
    least = int(re.search(r"memory_budget_bytes is 1024, but this model in fp32 needs more than (\d+) bytes", text).group(1))
    assert start(tmp_path, *GOOD, "--memory-budget", least, "--check-config")[0] == 2
    assert start(tmp_path, *GOOD, "--memory-budget", least + 1, "--check-config") == (0, "")


def stamp(text):
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=datetime.timezone.utc).timestamp()


LINE = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (DEBUG|INFO|WARNING|ERROR) (.*)$")


def test_f11_a_signal_s_line_has_the_signal_s_time_and_no_line_claims_a_source_position():
    with Cluster(fake=True, worker=False) as cluster:
        time.sleep(1.5)  # a line that began when the server did would be older than the signal
        before = time.time()
        cluster.server.send_signal(signal.SIGTERM)
        assert cluster.server.wait(60) == 0
        lines = [LINE.match(line) for line in cluster.said().splitlines()]
        assert all(lines), cluster.said()
        told = next(line for line in lines if line.group(3).startswith("stopping: Terminated"))
        assert before - 0.01 <= stamp(told.group(1)) <= time.time() + 0.01
        assert not re.search(r"\w\.(cc|h):\d+", cluster.said()), cluster.said()


def test_f11_json_lines_are_objects_with_time_level_program_and_message():
    with Cluster(fake=True, flags=("--log-format", "json"), worker_flags=("--log-format", "json")) as cluster:
        assert Request().send(cluster.stub).steps_applied == 1
        lines = [json.loads(line) for line in cluster.said().splitlines()]
        assert {line["program"] for line in lines} == {"stemma-server", "stemma-worker"}
        for line in lines:
            assert list(line) == ["time", "level", "program", "pid", "message"] and stamp(line["time"]) > 0
        pids = {line["program"]: line["pid"] for line in lines}
        assert pids == {"stemma-server": cluster.server.pid, "stemma-worker": cluster.worker.pid}
        assert any(line["message"].startswith("serving ") and line["level"] == "info" for line in lines)


def test_f11_a_refused_start_is_json_too(tmp_path):
    code, text = start(tmp_path, *GOOD, "--dtype", "fp8", "--listen", "nowhere", "--log-format", "json")
    assert code == 2
    assert [json.loads(line)["level"] for line in text.splitlines()] == ["error", "error"]


def test_f11_the_level_is_the_least_that_is_written(tmp_path):
    with Cluster(fake=True, worker=False, flags=("--log-level", "warning")) as cluster:
        cluster.model()
        cluster.server.send_signal(signal.SIGTERM)
        cluster.server.wait(60)
        assert cluster.said() == ""
    for option, word in (("--log-level", "loud"), ("--log-format", "xml")):
        code, text = start(tmp_path, *GOOD, option, word)
        assert code == 2 and word in text, text
