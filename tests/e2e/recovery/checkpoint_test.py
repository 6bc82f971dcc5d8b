"""Checkpoints of real processes: training goes on from one with the same bits, on the same ranks; what is damaged is named and
passed over; whenever a process is killed, there is the checkpoint before or the new one.

STEMMA_FAULTS_SEED chooses where files are damaged and when processes are killed; a failure prints it."""

import concurrent.futures
import os
import pathlib
import random
import shutil
import signal
import time

import pytest

import stemma
from e2e.errors.failpoints import Failpoints
from e2e.errors.server import wait_for
from e2e.file_digest import digest_of
from e2e.gang.small_groups import make_model
from e2e.recovery.durable_run import REQUESTS, STEPS_OF_REQUEST, DurableRun, send, weights_after

SEED = int(os.environ.get("STEMMA_FAULTS_SEED", "1"))
HALF = REQUESTS // 2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def undisturbed(model, tmp_path_factory):
    """ranks -> weights after the fixed run."""
    known = {}

    def of(ranks):
        if ranks not in known:
            with DurableRun(model, tmp_path_factory.mktemp(f"undisturbed-{ranks}"), ranks) as run, run.client() as client:
                for number in range(REQUESTS):
                    send(client, number, ranks)
                known[ranks] = weights_after(run, "end")
        return known[ranks]
    return of


def checkpoints_of(data):
    return pathlib.Path(data) / "data" / "checkpoints"


@pytest.mark.parametrize("ranks", [1, 2])
def test_half_a_run_a_checkpoint_a_new_journal_and_the_other_half_are_the_whole_run(model, undisturbed, tmp_path, ranks):
    with DurableRun(model, tmp_path / "first", ranks) as run, run.client() as client:
        for number in range(HALF):
            send(client, number, ranks)
        saved = client.save_checkpoint("half", client_state=b"position")
        assert (saved.step, saved.damage, saved.client_state_bytes) == (HALF * STEPS_OF_REQUEST, "", 8)
    target = checkpoints_of(tmp_path / "second")
    target.mkdir(parents=True)
    shutil.copytree(checkpoints_of(tmp_path / "first") / "half", target / "half")
    with DurableRun(model, tmp_path / "second", ranks) as run, run.client() as client:
        loaded = client.load_checkpoint()
        assert (loaded.checkpoint.name, loaded.client_state, loaded.step) == ("half", b"position", saved.step)
        for number in range(HALF, REQUESTS):
            send(client, number, ranks)
        assert client.model()["step"] == REQUESTS * STEPS_OF_REQUEST
        assert weights_after(run, "end") == undisturbed(ranks)


@pytest.mark.parametrize("before, after", [(1, 2), (2, 1)])
def test_the_state_is_the_same_on_another_mesh(model, tmp_path, before, after):
    with DurableRun(model, tmp_path, before) as run, run.client() as client:
        for number in range(2):
            send(client, number, before)
        client.save_checkpoint("here")
        weights = weights_after(run, "before")
    with DurableRun(model, tmp_path, after) as run, run.client() as client:
        assert client.model()["step"] == 2 * STEPS_OF_REQUEST
        assert weights_after(run, "after") == weights
        client.save_checkpoint("there")
    for file in ("model.safetensors", "optim/exp_avg-model.safetensors", "optim/exp_avg_sq-model.safetensors"):
        here, there = (digest_of([checkpoints_of(tmp_path) / name / file]) for name in ("here", "there"))
        assert here == there, file


@pytest.mark.parametrize("durability", ["replay", "rewind"])
def test_a_server_that_is_stopped_inside_a_request_says_what_became_of_it(model, undisturbed, tmp_path, durability):
    """A checkpoint between two steps of a kept request would be one that its first step is applied to a second time."""
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {model}\ncheckpoints:\n  every_steps: 100\n")
    flags = ("--config", config, "--durability", durability)
    failpoints = Failpoints(tmp_path / "programs")
    run = DurableRun(model, tmp_path / "run", flags=flags, failpoints=failpoints)
    held = failpoints.hold("prepare.before_vote", 0)
    with run.client(retries=0) as client, concurrent.futures.ThreadPoolExecutor() as pool:
        sent = pool.submit(send, client, 0)
        wait_for(held.exists, "a step that is held")
        run.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining: at most" in run.log.read_text(), "server that drains")
        held.unlink()
        assert sent.exception().reason == "DRAINING"
        run.process.wait(60)
    with DurableRun(model, tmp_path / "run", flags=flags) as run, run.client() as client:
        if durability == "rewind":
            with pytest.raises(stemma.StemmaError, match="1 of 4 steps are applied and stay"):
                client.attach("request-0").result()
            assert client.model()["step"] == 1
            return
        assert client.attach("request-0").result().steps[-1].step == STEPS_OF_REQUEST
        for number in range(1, REQUESTS):
            send(client, number)
        assert weights_after(run, "end") == undisturbed(1)


def test_what_went_on_without_saving_is_computed_again_from_the_checkpoint(model, undisturbed, tmp_path):
    run = DurableRun(model, tmp_path)
    with run.client() as client:
        for number in range(HALF):
            send(client, number)
        client.save_checkpoint("half")
        for number in range(HALF, REQUESTS):
            send(client, number)
        run.kill()
    with DurableRun(model, tmp_path) as run, run.client() as client:
        assert client.model()["step"] in range(HALF * STEPS_OF_REQUEST, REQUESTS * STEPS_OF_REQUEST + 1)
        wait_for(lambda: client.model()["state"] == "IDLE", "weights that are those of the end again")
        assert weights_after(run, "end") == undisturbed(1)
        log = run.log.read_text()
        assert f"serves: step {HALF * STEPS_OF_REQUEST} of {REQUESTS * STEPS_OF_REQUEST}" in log, log[-2000:]


def test_a_flipped_byte_in_any_file_is_named_and_the_checkpoint_before_is_used(model, undisturbed, tmp_path):
    run = DurableRun(model, tmp_path)
    with run.client() as client:
        for number in range(HALF):
            send(client, number)
        client.save_checkpoint("first")
        send(client, HALF)
        client.save_checkpoint("second", client_state=b"x" * 100)
        for number in range(HALF + 1, REQUESTS):
            send(client, number)
        run.kill()  # one that is stopped would save a third
    good = checkpoints_of(tmp_path) / "second"
    draw = random.Random(SEED)
    copy = tmp_path / "data-copy"
    shutil.copytree(tmp_path / "data", copy)
    for file in sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file()):
        shutil.rmtree(tmp_path / "data")
        shutil.copytree(copy, tmp_path / "data")
        content = bytearray((good / file).read_bytes())
        position, bit = draw.randrange(len(content)), draw.randrange(8)
        content[position] ^= 1 << bit
        (good / file).write_bytes(content)
        where = f"{file} byte {position} bit {bit}, seed {SEED}"
        run = DurableRun(model, tmp_path)
        with run.client() as client:
            wait_for(lambda: client.model()["state"] == "IDLE", "weights that are those of the end again")
            assert weights_after(run, "end-damaged") == undisturbed(1), where
            known = {checkpoint.name: checkpoint for checkpoint in client.list_checkpoints()}
            if "second" in known:
                assert known["second"].damage and str(file) in known["second"].damage, f"{where}: {known['second'].damage}"
                with pytest.raises(stemma.StemmaError, match="CORRUPT_CHECKPOINT"):
                    client.load_checkpoint("second")
            else:  # no manifest of it
                assert str(file) == "manifest.json", where
                assert "manifest.json" in run.log.read_text(), where
            run.kill()


def test_a_kill_while_it_saves_leaves_the_checkpoint_before_or_the_new_one(model, undisturbed, tmp_path):
    draw = random.Random(SEED)
    for round_number in range(4):
        data = tmp_path / str(round_number)
        run = DurableRun(model, data)
        with run.client(retries=0) as client:
            for number in range(HALF):
                send(client, number)
            client.save_checkpoint("before")
            for number in range(HALF, REQUESTS):
                send(client, number)
        seconds = draw.uniform(0, 0.15)
        with run.client(retries=0) as client, concurrent.futures.ThreadPoolExecutor() as pool:
            saving = pool.submit(client.save_checkpoint, "new")
            time.sleep(seconds)
            run.kill()
            answer = saving.exception(60)
        assert answer is None or isinstance(answer, stemma.StemmaError), answer
        with DurableRun(model, data) as run, run.client() as client:
            wait_for(lambda: client.model()["state"] == "IDLE", "weights that are those of the end again")
            names = [checkpoint.name for checkpoint in client.list_checkpoints()]
            assert names[0] == "before" and set(names) <= {"before", "new"}, f"seed {SEED} after {seconds} s: {names}"
            assert not any(client.verify_checkpoint(name).damage for name in names)
            assert weights_after(run, "end") == undisturbed(1), f"seed {SEED} after {seconds} s"
            assert not list(checkpoints_of(data).glob(".tmp-*")), "what was left unfinished is removed"


def test_going_back_gives_up_the_steps_after_it(model, undisturbed, tmp_path):
    with DurableRun(model, tmp_path) as run, run.client() as client:
        for number in range(HALF):
            send(client, number)
        client.save_checkpoint("half", client_state=b"position")
        lineage = client.lineage
        send(client, HALF)
        loaded = client.load_checkpoint("half")
        assert (loaded.step, loaded.client_state) == (HALF * STEPS_OF_REQUEST, b"position")
        assert loaded.lineage != lineage and client.lineage == loaded.lineage
        with pytest.raises(stemma.StemmaError, match="ROLLED_BACK"):
            send(client, HALF)
        assert client.attach("request-0").status["state"] == "DONE", "what the checkpoint holds stays"


def test_the_newest_are_kept_and_a_pinned_one_stays(model, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {model}\ncheckpoints:\n  every_steps: {STEPS_OF_REQUEST}\n  keep: 2\n")
    with DurableRun(model, tmp_path, flags=["--config", config]) as run, run.client() as client:
        send(client, 0)
        wait_for(lambda: len(client.list_checkpoints()) == 1, "the first one that the server saves by itself")
        client.pin_checkpoint("step-00000004")
        for number in range(1, REQUESTS):
            send(client, number)
            step = (number + 1) * STEPS_OF_REQUEST
            wait_for(lambda step=step: client.list_checkpoints()[-1].step == step, "the next one")
        names = [checkpoint.name for checkpoint in client.list_checkpoints()]
        assert names == ["step-00000004", "step-00000020", "step-00000024"]
        wait_for(lambda: names == sorted(path.name for path in checkpoints_of(tmp_path).iterdir() if not path.name.startswith(".")),
                 "the others to be removed")
        wait_for(lambda: len(list((tmp_path / "data" / "spool").iterdir())) <= 1,
                 "the requests to be removed that the checkpoint before the newest holds")
        with pytest.raises(stemma.StemmaError, match="CHECKPOINT_IN_USE"):
            client.delete_checkpoint("step-00000024")
        client.delete_checkpoint("step-00000004")
        assert not (checkpoints_of(tmp_path) / "step-00000004").exists()


@pytest.mark.parametrize("unmounted, why", [(True, "another folder than the one that was opened"), (False, "no checkpoint of lineage")])
def test_checkpoints_that_are_gone_give_up_no_step_before_somebody_has_looked(model, undisturbed, tmp_path, unmounted, why):
    """As when their disk is unmounted, or somebody took them: kept requests reach back to the last checkpoint but one, and no
    further."""
    with DurableRun(model, tmp_path) as run, run.client() as client:
        for number in range(HALF):
            send(client, number)
            client.save_checkpoint(f"after-{number}")
        for number in range(HALF, REQUESTS):
            send(client, number)
        step, folder = client.model()["step"], checkpoints_of(tmp_path)
        elsewhere = tmp_path / "elsewhere"
        folder.rename(elsewhere) if unmounted else elsewhere.mkdir()
        for checkpoint in () if unmounted else list(folder.iterdir()):
            checkpoint.rename(elsewhere / checkpoint.name)
        folder.mkdir(exist_ok=True)
        os.kill(next(pid for pid, name in run.children().items() if name == "stemma-worker"), signal.SIGKILL)
        wait_for(lambda: client.model()["state"] == "UNUSABLE", "the checkpoints to be missed")
        assert client.model()["step"] == step and why in client.model()["state_reason"]
        run.kill()
    folder.rmdir()
    elsewhere.rename(folder)
    with DurableRun(model, tmp_path) as run, run.client() as client:
        assert client.model()["step"] == step
        assert weights_after(run, "end") == undisturbed(1)
