"""A disk that hangs while a checkpoint is saved: who asked for it hears it in time, everything else goes on, and saves begin
again when the disk answers. One that hangs while a checkpoint, or a request that was kept, is removed holds up nothing but
other removals."""

import concurrent.futures
import contextlib
import signal
import time

import pytest

import stemma
from e2e.errors.failpoints import Failpoints
from e2e.errors.server import PATIENCE_S, wait_for
from e2e.gang.small_groups import make_model
from e2e.recovery.durable_run import STEPS_OF_REQUEST, DurableRun, send

STOP_S = 15  # calls that wait have 5 s to end, the disk 2 s; `stemma local` kills a server after 37 s
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


def is_saved(client, name, pinned=False):
    """Saves it, if the disk lets it now. A disk that is only slow may end a save after it was said to fail."""
    try:
        return client.save_checkpoint(name, pinned=pinned)
    except stemma.StemmaError as error:
        if error.reason == "CHECKPOINT_EXISTS":
            return True
        assert "stands still" in error.message or "the disk of --data hangs" in error.message, error
        return None


def save(client, name, pinned=False):
    wait_for(lambda: is_saved(client, name, pinned), "a save")


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
        save(client, "three")
        assert [checkpoint.name for checkpoint in client.list_checkpoints()] == listed
        assert run.times_served() == served, "no worker is lost by it"
        assert " ERROR checkpoint one is not saved: " in run.log.read_text()


def test_a_removal_that_the_disk_does_not_end_holds_up_neither_training_nor_saves(model, tmp_path):
    checkpoints = tmp_path / "run" / "data" / "checkpoints"
    with run_of(model, tmp_path) as (run, client, pool, failpoints):
        served = run.times_served()
        for name in ("one", "two", "pinned"):
            save(client, name, pinned=name == "pinned")
        with held_at(failpoints, "ckpt.before_removal") as held:
            removed = pool.submit(client.delete_checkpoint, "one")
            wait_for(held.exists, "a removal that hangs")
            assert len(send(client, 0).steps) == STEPS_OF_REQUEST
            assert pool.submit(client.save_checkpoint, "three").result(PATIENCE_S).step == STEPS_OF_REQUEST
            assert len(send(client, 1).steps) == STEPS_OF_REQUEST
            # Two of its age are kept: the save takes the name of a third one from the list, whose removal waits as well.
            pool.submit(client.save_checkpoint, "four").result(PATIENCE_S)
            assert [checkpoint.name for checkpoint in client.list_checkpoints()] == ["pinned", "three", "four"]
            again = pool.submit(client.save_checkpoint, "one").exception(PATIENCE_S)
            assert isinstance(again, stemma.StemmaError) and again.reason == "CHECKPOINT_EXISTS", again
            assert not pool.submit(client.verify_checkpoint, "three").result(PATIENCE_S).damage
            assert not removed.done(), "it is answered when its name is free"
            assert (checkpoints / "one").exists() and (checkpoints / "two").exists()
        removed.result(PATIENCE_S)
        assert not (checkpoints / "one").exists()
        wait_for(lambda: not (checkpoints / "two").exists(), "the removal that waited")
        assert [checkpoint.name for checkpoint in client.list_checkpoints()] == ["pinned", "three", "four"]
        assert run.times_served() == served, "no worker is lost by it"


def test_a_server_that_is_told_to_stop_does_not_wait_for_a_removal_that_the_disk_does_not_end(model, tmp_path):
    with run_of(model, tmp_path) as (run, client, pool, failpoints):
        for name in ("one", "two"):
            save(client, name)
        with held_at(failpoints, "ckpt.before_removal") as held:
            removed = pool.submit(client.delete_checkpoint, "one")
            wait_for(held.exists, "a removal that hangs")
            told_s = time.monotonic()
            run.process.send_signal(signal.SIGTERM)
            assert run.process.wait(PATIENCE_S) == 0, run.log.read_text()
            assert time.monotonic() - told_s < STOP_S
        assert isinstance(removed.exception(PATIENCE_S), stemma.StemmaError)
        log = run.log.read_text()
        assert " WARNING stopped, though the disk of --data has not ended removing checkpoint one: " in log, log
        assert "before it had drained" not in log
    with DurableRun(model, tmp_path / "run", flags=FLAGS) as again, again.client() as client:
        assert {checkpoint.name for checkpoint in client.list_checkpoints()} == {"one", "two"}


def spooled(folder):
    return sorted(path.name for path in (folder / "run" / "data" / "spool").iterdir())


def test_a_kept_request_that_the_disk_does_not_remove_holds_up_nobody(model, tmp_path):
    with run_of(model, tmp_path) as (run, client, pool, failpoints):
        served = run.times_served()
        send(client, 0)
        save(client, "one")
        assert len(spooled(tmp_path)) == 1, "where the newest is damaged, it is computed again"
        with held_at(failpoints, "spool.before_removal") as held:
            assert pool.submit(client.save_checkpoint, "two").result(PATIENCE_S).step == STEPS_OF_REQUEST
            wait_for(held.exists, "a removal that hangs")
            assert len(send(client, 1).steps) == STEPS_OF_REQUEST
            pool.submit(client.save_checkpoint, "three").result(PATIENCE_S)
            pool.submit(client.save_checkpoint, "four").result(PATIENCE_S)
            pool.submit(client.delete_checkpoint, "three").result(PATIENCE_S)
            assert [checkpoint.name for checkpoint in client.list_checkpoints()] == ["four"]
            assert len(spooled(tmp_path)) == 2, "the second waits for the first"
        wait_for(lambda: not spooled(tmp_path), "both removals")
        assert run.times_served() == served, "no worker is lost by it"


def test_a_server_that_is_told_to_stop_leaves_the_kept_requests_that_the_disk_does_not_remove(model, tmp_path):
    with run_of(model, tmp_path) as (run, client, _, failpoints):
        send(client, 0)
        save(client, "one")
        with held_at(failpoints, "spool.before_removal") as held:
            save(client, "two")
            wait_for(held.exists, "a removal that hangs")
            told_s = time.monotonic()
            run.process.send_signal(signal.SIGTERM)
            assert run.process.wait(PATIENCE_S) == 0, run.log.read_text()
            assert time.monotonic() - told_s < STOP_S
        log = run.log.read_text()
        [left] = spooled(tmp_path)
        assert f" WARNING stopped, though the disk of --data has not ended removing spool/{left}: " in log, log
    with DurableRun(model, tmp_path / "run", flags=FLAGS) as again, again.client() as client:
        assert spooled(tmp_path) == [], "no row names it"
        assert len(send(client, 1).steps) == STEPS_OF_REQUEST
