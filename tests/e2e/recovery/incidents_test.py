"""What is left of a generation that was lost: the folder of docs/reliability.md, written by real processes."""

import json

import pytest

from e2e.errors.failpoints import Failpoints
from e2e.gang.small_groups import make_model
from e2e.recovery.durable_run import DurableRun, send

STALLED_AFTER_S = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


def incidents(run_folder):
    return sorted(run_folder.glob("data/incidents/*"))


def test_an_engine_that_hangs_leaves_its_stack_and_the_plan(model, tmp_path):
    failpoints = Failpoints(tmp_path / "programs")
    with DurableRun(model, tmp_path / "run", 2, failpoints=failpoints,
                    flags=("--worker-lost-after", "4", "--worker-stalled-after", str(STALLED_AFTER_S))) as run, run.client() as client:
        failpoints.arm("pass.suffix", 1, "hold")
        assert len(send(client, 0, ranks=2).steps) == 4  # the next generation makes it
        folder = incidents(tmp_path / "run")[0]
        lost = json.loads((folder / "server.json").read_text())
        assert folder.name == f"{lost['epoch']:06}-{lost['generation']:04}"
        assert lost["reason"].startswith("PREPARE of step 1 of request request-0 (attempt 1)") and "stands still" in lost["reason"]
        assert lost["job"] == {"id": "request-0", "what": "PREPARE of step 1 of request request-0 (attempt 1)", "decided": False}
        assert [rank["rank"] for rank in lost["ranks"]] == [0, 1]
        assert lost["ranks"][1]["phase"] == "prefix_forward" and not lost["ranks"][1]["answered"]
        assert json.loads((folder / "plan.json").read_text())["num_groups"] == 4
        assert "request request-0 accepted" in (folder / "server.log").read_text()
        hung = (folder / "rank-1.txt").read_text()
        assert "phase: prefix_forward" in hung, hung
        stack = hung.split("stack of the engine's thread:\n")[1].split("\n\n")[0]
        assert "Failpoint" in stack and "Pass::Run" in stack and "EngineThread::Run" in stack, hung
        assert "registers at" in hung.split("last lines of the log:")[1]
        assert (folder / "rank-0.txt").exists()


def test_who_is_killed_leaves_nothing_and_who_is_told_to_leave_neither(model, tmp_path):
    failpoints = Failpoints(tmp_path / "programs")
    with DurableRun(model, tmp_path / "run", 2, failpoints=failpoints) as run, run.client() as client:
        send(client, 0, ranks=2)
        assert not incidents(tmp_path / "run")
        failpoints.arm("apply.before_step", 0, "kill")
        send(client, 1, ranks=2)
        folder, = incidents(tmp_path / "run")
        lost = json.loads((folder / "server.json").read_text())
        assert lost["job"]["decided"] and lost["job"]["what"].startswith("APPLY of step 5")
        assert not (folder / "rank-0.txt").exists() and (folder / "rank-1.txt").exists()
        assert lost["step"] == lost["weights_step"] == 4
    assert len(incidents(tmp_path / "run")) == 1, "an end that was asked for is no incident"
