"""A disk that hangs while a checkpoint is saved or removed: who asked for a save hears it in time, everything else goes on, and
saves begin again when the disk answers."""

import concurrent.futures
import contextlib

import pytest

import stemma
from e2e.errors.failpoints import Failpoints
from e2e.errors.server import PATIENCE_S, wait_for
from e2e.gang.small_groups import make_model
from e2e.recovery.durable_run import STEPS_OF_REQUEST, DurableRun, send

FLAGS = ("--worker-lost-after", "4", "--worker-stalled-after", "5")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@contextlib.contextmanager
def run_of(model, folder):
    """(the run, a client, threads for its calls, the places of its programs)"""
    failpoints = Failpoints(folder / "programs")
    with DurableRun(model, folder / "run", failpoints=failpoints, flags=FLAGS) as run, run.client(retries=0) as client, \
            concurrent.futures.ThreadPoolExecutor() as pool:
        yield run, client, pool, failpoints


@contextlib.contextmanager
def held_at(failpoints, place):
    """Holds the server at its next pass, to the end. Gives the file that is there meanwhile."""
    held = failpoints.hold(place, 0)
    try:
        yield held
    finally:
        held.unlink(missing_ok=True)


def refusal(call):
    """What a call that fails says, without waiting for longer than it may take."""
    error = call.exception(PATIENCE_S)
    assert isinstance(error, stemma.StemmaError) and error.reason == "INTERNAL", error
    return error.message


def is_saved(client, name):
    try:
        return client.save_checkpoint(name)
    except stemma.StemmaError as error:
        assert "the disk of --data hangs" in error.message, error
        return None


@pytest.mark.parametrize("place,what,listed", [("ckpt.before_folder", "making the folder of checkpoint one", ["three"]),
                                               ("ckpt.before_manifest", "reading checkpoint one back", ["one", "three"])])
def test_a_save_that_the_disk_does_not_end_fails_and_training_goes_on(model, tmp_path, place, what, listed):
    with run_of(model, tmp_path) as (run, client, pool, failpoints):
        served = run.times_served()
        with held_at(failpoints, place) as held:
            first = pool.submit(client.save_checkpoint, "one")
            wait_for(held.exists, "a save that hangs")
            second = pool.submit(client.save_checkpoint, "two")
            assert f"{what} stands still" in refusal(first)
            assert "the disk of --data hangs" in refusal(second)
            assert len(send(client, 0).steps) == STEPS_OF_REQUEST
            assert client.list_checkpoints() == []
        wait_for(lambda: is_saved(client, "three"), "a save")
        assert [checkpoint.name for checkpoint in client.list_checkpoints()] == listed
        assert run.times_served() == served, "no worker is lost by it"
        assert " ERROR checkpoint one is not saved: " in run.log.read_text()


def test_a_removal_that_the_disk_does_not_end_holds_up_no_training(model, tmp_path):
    with run_of(model, tmp_path) as (run, client, pool, failpoints):
        for name in ("one", "two"):
            client.save_checkpoint(name)
        with held_at(failpoints, "ckpt.before_removal") as held:
            removed = pool.submit(client.delete_checkpoint, "one")
            wait_for(held.exists, "a removal that hangs")
            assert len(send(client, 0).steps) == STEPS_OF_REQUEST
            assert [checkpoint.name for checkpoint in client.list_checkpoints()] == ["two"]
            assert "making the folder of checkpoint four stands still" in refusal(pool.submit(client.save_checkpoint, "four"))
            assert len(send(client, 1).steps) == STEPS_OF_REQUEST
            assert not removed.done(), "it is answered when its name is free"
        removed.result(PATIENCE_S)
        assert not (tmp_path / "run" / "data" / "checkpoints" / "one").exists()
        wait_for(lambda: is_saved(client, "three"), "a save")
