"""Budgets against a real server and worker: what is refused at start, what the budget chooses, and that the update does
not depend on it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "errors"))

from good_request import Request  # noqa: E402
from server import BUILD, MODEL, Cluster, read_ready_file, wait_for, write_secret  # noqa: E402
from stemma import _proto  # noqa: E402


SLABS_OF_OPTIMIZER = 1  # this model's states are less than one slab: APPLY brings them all in at once


def start(tmp_path, *flags):
    result = subprocess.run([str(BUILD / "bin/stemma-server"), "--model", str(MODEL), "--data", str(tmp_path / "data"),
                             *flags], stderr=subprocess.PIPE, text=True, timeout=60,
                            env={**os.environ, "STEMMA_WORKER_SECRET": "0" * 64})
    return result.returncode, result.stderr


def residency_of(cluster):
    config = cluster.stub.GetServerInfo(_proto.GetServerInfoRequest()).config
    field = config.DESCRIPTOR.fields_by_name["optimizer_residency"]
    return field.enum_type.values_by_number[config.optimizer_residency].name


@pytest.fixture(scope="module")
def ample():
    """The state's bytes by the plan, and the metrics of two steps, without a budget."""
    with Cluster() as cluster:
        assert residency_of(cluster) == "DEVICE"
        request = Request()
        request.header["request"]["validate_only"] = True
        return request.send(cluster.stub).plan.state, train(cluster)


def train(cluster):
    return [dict(Request().send(cluster.stub).result.steps[0].metrics) for _ in range(2)]


@pytest.mark.parametrize("part", ["no byte", "the weights alone", "a byte too few"])
@pytest.mark.parametrize("check", [(), ("--check-config",)], ids=["start", "check"])
def test_a_budget_below_weights_and_gradients_is_refused_at_start(tmp_path, ample, part, check):
    state, _ = ample
    least = state.device - state.optimizer + SLABS_OF_OPTIMIZER * state.optimizer + state.apply
    budget = {"no byte": 1, "the weights alone": state.weights, "a byte too few": least}[part]
    code, text = start(tmp_path, "--memory-budget", str(budget), *check)
    assert code == 2
    assert f"memory_budget_bytes is {budget}" in text and f"needs more than {least} bytes" in text, text


def test_a_host_memory_below_the_states_that_are_forced_there_is_refused_at_start(tmp_path, ample):
    code, text = start(tmp_path, "--optimizer-residency", "host", "--host-memory", "1000")
    assert code == 2 and "host_memory_bytes is 1000" in text and f"need {ample[0].optimizer} of host memory" in text, text


def test_a_device_residency_beyond_the_budget_is_refused_at_start(tmp_path, ample):
    code, text = start(tmp_path, "--optimizer-residency", "device", "--memory-budget", str(ample[0].device))
    assert code == 2 and "with optimizer_residency: device" in text, text


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_under_a_tight_budget_optimizer_states_go_to_the_host_and_the_update_is_the_same_bits(dtype):
    with Cluster(flags=("--dtype", dtype)) as cluster:
        request = Request()
        request.header["request"]["validate_only"] = True
        plan = request.send(cluster.stub).plan
        state, wanted = plan.state, train(cluster)
    budget = state.device + plan.peak_bytes  # of a short request, not of the longest context
    with Cluster(flags=("--dtype", dtype, "--memory-budget", str(budget))) as cluster:
        assert residency_of(cluster) == "HOST"
        got = train(cluster)
    for step, other in zip(wanted, got):
        for name in ("actor/loss", "actor/grad_norm"):
            assert step[name] == other[name], name
        assert step["measured/state_bytes"] == pytest.approx(state.device, rel=0.03)
        assert step["predicted/state_bytes"] == state.device
        assert other["measured/state_bytes"] == pytest.approx(state.device - state.optimizer, rel=0.03)


def test_a_budget_that_the_machine_does_not_have_is_refused_with_both_numbers():
    budget = 1 << 50
    with Cluster(flags=("--memory-budget", str(budget)), worker=False) as cluster:
        cluster.start_worker(wait=False)
        assert cluster.worker.wait(60) == 2, "a configuration that cannot run"
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        said = re.search(r"memory_budget_bytes is (\d+), and the worker's machine has (\d+) bytes", cluster.said())
        assert said and int(said[1]) == budget and 0 < int(said[2]) <= machine, cluster.said()


def memory_available_bytes():
    fields = dict(line.split(":") for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    return 1024 * int(fields["MemAvailable"].split()[0])


def test_a_machine_that_is_too_small_is_named_with_its_bytes_and_nothing_is_loaded(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    config = json.loads((MODEL / "config.json").read_text())
    config["max_position_embeddings"] = 2**31 - 1  # cosines and sines of 32 GiB
    (model / "config.json").chmod(0o644)
    (model / "config.json").write_text(json.dumps(config))
    if memory_available_bytes() > 2**35:
        pytest.skip("this machine has room for the tables of 2^31 positions")
    secret = ["--worker-secret-file", str(tmp_path / "secret")]
    write_secret(tmp_path / "secret")
    server = subprocess.Popen([str(BUILD / "bin/stemma-server"), *secret, "--model", str(model), "--data",
                               str(tmp_path / "data"), "--ready-file", str(tmp_path / "ready"), "--die-with-parent"],
                              stderr=subprocess.DEVNULL)
    try:
        wait_for((tmp_path / "ready").exists, "the ready file")
        worker = subprocess.run([str(BUILD / "bin/stemma-worker"), *secret, "--server",
                                 read_ready_file(tmp_path / "ready")[1]],
                                stderr=subprocess.PIPE, text=True, timeout=60)
        assert worker.returncode == 2, "configuration: whoever restarts workers need not try again"
        assert re.search(r"machine has \d+ bytes free, and the state of this model in fp32 needs \d{11} there",
                         worker.stderr), worker.stderr
    finally:
        server.kill()
        server.wait()
