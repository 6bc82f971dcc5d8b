"""Workers that hold one copy of the model together, killed, and followed by workers of another mesh."""

import os
import signal

import pytest

from e2e.errors.server import wait_for
from e2e.gang.small_groups import groups_of, make_model
from e2e.recovery.durable_run import STEPS_OF_REQUEST, DurableRun, facts, send, weights_after


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


def test_who_knew_weights_that_are_computed_again_to_other_bits_goes_on(model, tmp_path):
    """The lineage has a new name, as another mesh adds in another order. No step is lost by that: what expects the name of before
    is answered and trained as if nothing had been."""
    run = DurableRun(model, tmp_path)
    with run.client() as client:
        known = [facts(send(client, number)) for number in range(2)]
        before = client.lineage
        run.kill()  # no checkpoint: both requests are computed again
    with DurableRun(model, tmp_path, ranks=2, flags=("--mesh", "tp=2")) as again, again.client() as client:
        client._saw(before)  # the client of before, whose server has another address now
        assert facts(send(client, 1))[0] == known[1][0], "its stored outcome"
        steps = [step.step for step in send(client, 2).steps]
        assert steps == list(range(2 * STEPS_OF_REQUEST + 1, 3 * STEPS_OF_REQUEST + 1))
        now = client.model()
        assert now["lineage"] != before == client.lineage, "control: the name is a new one, which GetModel says"
        assert client.log_probs(groups_of(7, [(10, 3)])) and client.export("now") and client.save_checkpoint("now")
        assert now["step"] == 3 * STEPS_OF_REQUEST
        client.load_checkpoint("now")
