"""The trace that `make demo` replays, on `stemma local` with several workers, on every kind of mesh: the losses of one worker."""

import json
import pathlib
import sys

import pytest

from client.cli.cli_testing import BIN
from e2e.gang.gang_test import Local

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"
sys.path.append(str(EXAMPLES / "grpo"))

from policy import make_start_model  # noqa: E402

TRACE = EXAMPLES / "traces" / "reverse4.jsonl"
# In fp64. Sums in another order differ by 1e-15 of the value in a step; twenty steps of training leave room for a hundred
# times that. A rank whose groups are lost, or are counted twice, is off by 1e-2.
TOLERANCES = {"schema": "stemma.expected.v1", "loss": {"absolute": 1e-12}, "grad_norm": {"relative": 1e-12}}
# Its rollouts, two steps of 64 that share four prompts, and its first lesson, twenty steps of groups of one.
LINES = (5, 1)


def replay(local, line, *arguments):
    return local.call("replay", TRACE, "--start", line, "--limit", 1, *arguments, "-o", "json")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_start_model(BIN / "stemma", tmp_path_factory.mktemp("demo") / "model", 0)


@pytest.fixture(scope="module")
def expected(model, tmp_path_factory):
    """For each line a file of what one worker makes of it."""
    folder, files = tmp_path_factory.mktemp("one"), {}
    with Local(folder, model) as local:
        for line in LINES:
            steps = [json.loads(row) for row in replay(local, line).splitlines()]
            assert len(steps) == {5: 2, 1: 20}[line]
            files[line] = folder / f"line-{line}.jsonl"
            files[line].write_text("".join(json.dumps(row) + "\n" for row in [TOLERANCES, *steps]))
        local.stop()
    return files


@pytest.mark.parametrize("workers, mesh", [(2, ("--workers", 2)), (4, ("--workers", 4)), (2, ("--mesh", "tp=2")),
                                           (4, ("--mesh", "dp=2,tp=2")), (2, ("--mesh", "cp=2", "--prefix-kv", "regather")),
                                           (4, ("--mesh", "cp=2,dp=2")), (4, ("--mesh", "tp=2,pp=2")),
                                           (2, ("--mesh", "dp=2", "--shard-parameters", "on")),
                                           (4, ("--mesh", "dp=2,tp=2", "--shard-parameters", "on"))], ids=str)
def test_the_losses_of_the_demo_are_those_of_one_worker(model, expected, tmp_path, workers, mesh):
    with Local(tmp_path, model, *mesh) as local:
        assert len(local.workers()) == workers
        for line in LINES:
            replay(local, line, "--verify", expected[line])
        local.stop()


def test_other_losses_are_seen(model, expected, tmp_path):
    """The control: the same requests from weights that have gone a step further."""
    with Local(tmp_path, model) as local:
        replay(local, 5, "--verify", expected[5])
        local.call("replay", TRACE, "--start", 5, "--limit", 1, "--run-id", "again", "--verify", expected[5], code=1)
        local.stop()
