"""Workers that hold one copy of the model together, killed, and followed by workers of another mesh."""

import os
import signal

import pytest

from e2e.errors.server import wait_for
from e2e.gang.small_groups import make_model
from e2e.recovery.durable_run import DurableRun, facts, send, weights_after


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


def kill_one(durable, number):
    workers = sorted(pid for pid, program in durable.children().items() if program.startswith("stemma-worker"))
    served = durable.times_served()
    os.kill(workers[number], signal.SIGKILL)
    wait_for(lambda: durable.times_served() > served, "ranks that have the model again")


@pytest.mark.parametrize("mesh, shard", (("tp=2", "off"), ("cp=2", "off"), ("pp=2", "off"), ("dp=2", "on")))
def test_a_rank_that_is_killed_costs_nothing(model, tmp_path, mesh, shard):
    # How K/V are kept would follow the links that each server measures.
    flags = ("--mesh", mesh, "--shard-parameters", shard, "--prefix-kv", "regather")
    with DurableRun(model, tmp_path / "still", ranks=2, flags=flags) as still, still.client() as client:
        expected = [facts(send(client, number)) for number in range(3)]
        weights = weights_after(still, "end")
    with DurableRun(model, tmp_path / "killed", ranks=2, flags=flags) as killed, killed.client() as client:
        told = []
        for number in range(3):
            told.append(facts(send(client, number)))
            if number < 2:
                kill_one(killed, number)
        assert told == expected
        assert weights_after(killed, "end") == weights


def test_a_run_goes_on_on_another_mesh(model, tmp_path):
    """What is saved on one mesh is what another loads, byte by byte; the steps after it are its own sums."""
    steps = []
    for mesh, ranks, shard in (("tp=2", 2, "off"), ("cp=2", 2, "on"), ("pp=2", 2, "off"), ("dp=2", 2, "on"), ("dp=2", 2, "off"),
                               ("dp=2,tp=2", 4, "on"), ("dp=1", 1, "off")):
        flags = ("--mesh", mesh, "--shard-parameters", shard)
        with DurableRun(model, tmp_path / "run", ranks=ranks, flags=flags) as durable, durable.client() as client:
            if steps:
                assert weights_after(durable, f"begin-{len(steps)}") == weights, (mesh, shard)
            steps += [step.step for step in send(client, len(steps)).steps]
            weights = weights_after(durable, f"end-{len(steps)}")
    assert steps == list(range(1, len(steps) + 1)), "no step was lost or made twice"
