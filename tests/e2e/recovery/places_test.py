"""The table of docs/reliability.md with real processes: at each named place (common/base/failpoint.h) the server, or each rank,
is killed, stopped, ended or delayed, or what follows fails: a write that the disk refuses, a message that is lost, a peer that
cannot be reached. Whatever it is, every request gets the answer of a run that nobody disturbed, no step is lost or made
twice, and the weights are the same bytes.

A run of one rank and one of two go through it case after case, on the same data. A short run draws cases
(STEMMA_FAULTS_SEED, STEMMA_FAULTS_COUNT for each of the two); STEMMA_FAULTS_ALL=1 takes all of them once."""

import contextlib
import faulthandler
import itertools
import os
import pathlib
import random
import signal
import sys
import threading
import time

import pytest

import stemma
from e2e.errors.failpoints import Failpoints, named_in
from e2e.errors.server import wait_for
from e2e.file_digest import weights_digest
from e2e.gang.small_groups import make_model
from e2e.recovery.durable_run import STEPS_OF_REQUEST, DurableRun, facts, send, weights_after

ROOT = pathlib.Path(__file__).resolve().parents[3]
SEED = int(os.environ.get("STEMMA_FAULTS_SEED", "1"))
COUNT = int(os.environ.get("STEMMA_FAULTS_COUNT", "6"))
LOST_AFTER_S, STALLED_AFTER_S = 4, 5  # of a worker that says nothing, and of a job that stands still: the least
LOG_CHARACTERS = 20_000  # of the log of a run that failed
# A checkpoint follows every second update, each with a second in which its save may come there; one whose answer was lost in
# the case before holds them up until it is given up.
TRIES = 4 + 2 * STALLED_AFTER_S
SERVED_WITHIN_S, CASE_WITHIN_S = 90, 180  # only bound a failure: most cases take 1 to 10 s

# By what makes a process pass the place. An update passes those of saving too: every second one is followed by a checkpoint.
# What fails is a write to a disk, a message, or a collective.
UPDATE, RECOVERY, RESTART, PASS, VERIFY, EXPORT, PIN = "update", "recovery", "restart", "log_prob", "verify", "export", "pin"
SERVER = {
    UPDATE: {
        "spool.before": "fail", "spool.after": "", "spool.before_removal": "", "reply.before": "",
        "row.accepted.before": "fail", "row.accepted.after": "", "row.committed.before": "fail", "row.committed.after": "",
        "row.applied.before": "fail", "row.applied.after": "", "row.finished.before": "fail", "row.finished.after": "",
        "row.checkpoint_saved.before": "fail", "row.checkpoint_saved.after": "",
        "row.checkpoint_dropped.before": "fail", "row.checkpoint_dropped.after": "",
        "send.prepare": "fail", "send.apply": "fail", "send.save": "fail", "send.drop": "fail",
        "receive.vote": "fail", "receive.applied": "fail", "receive.results": "", "receive.heartbeat": "fail",
        "receive.save_staged": "fail", "receive.save_done": "fail",
        "ckpt.before_folder": "fail", "ckpt.before_manifest": "fail", "ckpt.after_manifest": "", "ckpt.before_rename": "fail",
        "ckpt.after_rename": "", "ckpt.before_removal": "",
    },
    RECOVERY: {"send.configure": "fail", "receive.register": "", "receive.ready": "fail", "ckpt.before_read": ""},
    RESTART: {"row.started.before": "fail", "row.started.after": ""},
    PASS: {"send.log_prob": "fail", "receive.log_prob_done": "fail"},
    VERIFY: {"send.verify": "fail", "receive.verify_done": "fail"},
    EXPORT: {"send.export": "fail", "receive.export_done": "fail"},
    PIN: {"row.checkpoint_changed.before": "fail", "row.checkpoint_changed.after": ""},
}
OF_SEVERAL = {RECOVERY: {"receive.store_opened": "fail"}}  # ranks
RANK = {
    UPDATE: {
        "pass.prefix_forward": "", "pass.suffix": "", "pass.prefix_backward": "", "prepare.in_reduce": "fail",
        "prepare.before_agree": "", "prepare.before_vote": "", "apply.before_step": "", "apply.in_gather": "fail",
        "apply.before_answer": "", "checkpoint.staged": "", "checkpoint.part_written": "fail", "checkpoint.before_done": "",
    },
    RECOVERY: {"load.begun": "", "load.met": "fail", "load.before_ready": ""},
    PASS: {"log_prob.before_answer": ""},
    VERIFY: {"verify.before_answer": ""},
    EXPORT: {"export.begun": "", "export.written": "", "export.before_answer": ""},
}
# No run of this table passes them.
NOT_PASSED = {
    "row.lineage_begun": "a lineage ends by a load or by damage: checkpoint_test.py",
    "row.model_loaded": "once, before the first request",
    "row.undone": "of a step that is not finite: tests/server/protocol/scenarios",
    "row.skipped": "of steps in which nothing has a gradient: tests/server/protocol/scenarios",
    "row.snapshot": "after 8 MiB of rows: tests/server/store",
    "send.payload": "sent by the stream itself, in chunks",
    "send.abort": "of a cancelled request", "send.shutdown": "when the server leaves",
    "receive.refused": "of an attempt that the worker does not know",
}


AGAIN = {"DISK_FULL", "RECOVERING"}  # a client that is told so comes again


def table(ranks):
    """[(what passes it, place, rank or None for the server, action)]"""
    cases = []
    for places in [SERVER, OF_SEVERAL] if ranks > 1 else [SERVER]:
        cases += [(operation, place, None, action) for operation, of in places.items() for place, fails in of.items()
                  for action in ("kill", "stop", "delay", *fails.split())]
    for rank, (operation, of) in itertools.product(range(ranks), RANK.items()):
        cases += [(operation, place, rank, action) for place, fails in of.items()
                  for action in ("kill", "stop", "exit", "delay", *fails.split())]
    return cases


def drawn(ranks):
    if os.environ.get("STEMMA_FAULTS_ALL") == "1":
        return table(ranks)
    return random.Random(f"{SEED} {ranks}").choices(table(ranks), k=COUNT)


class Undisturbed:
    """The same requests, and nobody disturbs them; asked as far as they are needed."""

    def __init__(self, model, folder, ranks):
        self.run, self._ranks, self.answers = DurableRun(model, folder, ranks), ranks, []

    def answer(self, number):
        with self.run.client() as client:
            while len(self.answers) <= number:
                self.answers.append(facts(send(client, len(self.answers), self._ranks)))
        return self.answers[number]

    def weights(self):
        return weights_after(self.run, f"check-{time.monotonic_ns()}")

    def close(self):
        self.run.close()


@contextlib.contextmanager
def ends_in_time(*runs):
    """Kills the runs when the case stands still, so that its calls end and the failure says where they stood."""
    def give_up():
        print(f"the case takes more than {CASE_WITHIN_S} s; its threads:")
        faulthandler.dump_traceback(sys.__stderr__)
        for run in runs:
            run.kill()

    watch = threading.Timer(CASE_WITHIN_S, give_up)
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        watch.join()


class Disturbed:
    """A run that is struck, and what is checked of it."""

    def __init__(self, model, folder, ranks, undisturbed):
        self.failpoints = Failpoints(folder / "programs")
        config = folder / "run.yaml"
        config.write_text(f"model: {model}\ncheckpoints:\n  every_steps: {2 * STEPS_OF_REQUEST}\n")
        self.run = DurableRun(model, folder / "run", ranks, failpoints=self.failpoints, flags=(
            "--config", config, "--worker-lost-after", str(LOST_AFTER_S), "--worker-stalled-after", str(STALLED_AFTER_S)))
        self._ranks, self._undisturbed, self.sent = ranks, undisturbed, 0
        self.client = stemma.Client(self.run.address, retries=5, recovery_timeout_s=SERVED_WITHIN_S)
        with self.ends_in_time():
            while not self.client.list_checkpoints():  # with which a recovery begins
                self.update()

    def ends_in_time(self):
        return ends_in_time(self.run, self._undisturbed.run)

    def update(self):
        """The next request. Its answer is the undisturbed one's."""
        steps, log_probs = facts(self._until_served(lambda: send(self.client, self.sent, self._ranks)))
        expected, expected_log_probs = self._undisturbed.answer(self.sent)
        assert steps == expected
        assert log_probs in ({}, expected_log_probs)
        self.sent += 1
        assert self._until_served(self.client.model)["step"] == self.sent * STEPS_OF_REQUEST

    def do(self, operation):
        name = f"{operation}-{time.monotonic_ns()}"
        if operation == RECOVERY:
            self.failpoints.arm("pass.suffix", 0, "kill")
        if operation == RESTART:
            self.kill_server()
        if operation == PASS:
            self._until_served(lambda: self.client.log_probs([stemma.Group("g", [1, 2, 3], [stemma.Rollout([4, 5], reward=1.0)])]))
        elif operation == VERIFY:
            self._verify()
        elif operation == EXPORT:
            self._export(name)
        elif operation == PIN:
            self._pin()
        else:
            self.update()

    def _verify(self):
        """Its answer is of the weights that are there, and it trains none of them: `check` is of the updates alone."""
        groups = [stemma.Group("g", [1, 2, 3], [stemma.Rollout([4, 5], advantage=1.0), stemma.Rollout([6], advantage=-2.0)])]
        found = self._until_served(lambda: self.client.verify(groups, stemma.grpo(), stemma.adamw(1e-3), old="on_policy"))
        assert found.step == self.sent * STEPS_OF_REQUEST and found.error < 1e-5, found

    def _export(self, name):
        try:
            self._until_served(lambda: self.client.export(name))
        except stemma.StemmaError as error:
            assert error.reason == "EXPORT_EXISTS", error  # it was written, and the answer did not come

    def _pin(self):
        name = self._until_served(self.client.list_checkpoints)[-1].name
        for pinned in (True, False):
            self._until_served(lambda: self.client.pin_checkpoint(name, pinned))

    def strike(self, operation, place, rank, action):
        """Lets it happen while the operation runs; the run goes on, and says what the undisturbed one does."""
        served, children = self.run.times_served(), self.run.children()
        self.failpoints.arm(place, rank or 0, action)
        with self._liveness_probe(place) if rank is None and action == "stop" else contextlib.nullcontext():
            for _ in range(TRIES):
                self.do(operation)
                if not self._is_armed_soon(place, rank or 0):
                    break
            else:
                raise AssertionError("the place was not passed")
        if self.run.children() != children:  # `stemma local` gives up what dies three times before it has seen it serve
            wait_for(lambda: self.run.times_served() > served, "workers that have the model")

    @contextlib.contextmanager
    def _liveness_probe(self, place):
        """Kills the server once it was stopped there, as what looks after it does when it answers no more."""
        ended = threading.Event()

        def look():
            while self.failpoints.is_armed(place, 0) and not ended.wait(0.05):
                pass
            time.sleep(0.3)
            if not self.failpoints.is_armed(place, 0):
                self.kill_server()

        probe = threading.Thread(target=look)
        probe.start()
        try:
            yield
        finally:
            ended.set()
            probe.join()

    def _is_armed_soon(self, place, rank):
        """Whether it is still armed when what runs in the background has had its time."""
        give_up = time.monotonic() + 1
        while self.failpoints.is_armed(place, rank) and time.monotonic() < give_up:
            time.sleep(0.02)
        return self.failpoints.is_armed(place, rank)

    def kill_server(self):
        for pid, name in self.run.children().items():
            if name == "stemma-server":
                os.kill(pid, signal.SIGKILL)

    def _until_served(self, call):
        """What a client does that is told to come again: refused for what the disk or the loss was, it asks again."""
        give_up = time.monotonic() + SERVED_WITHIN_S
        while True:
            try:
                return call()
            except stemma.StemmaError as error:
                if error.reason not in AGAIN and error.code != "UNAVAILABLE":
                    raise
                assert self.run.process.poll() is None, f"`stemma local` ended, and with it {error}"
                assert time.monotonic() < give_up, f"refused for {SERVED_WITHIN_S} s: {error}"
                time.sleep(0.1)

    def check(self):
        """The weights, byte by byte."""
        assert weights_after(self.run, f"check-{time.monotonic_ns()}") == self._undisturbed.weights()

    def close(self):
        self.failpoints.disarm()
        self.client.close()
        self.run.kill()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def runs(model, tmp_path_factory):
    """get(ranks): a run that is struck again and again; drop(ranks): it failed, and the next case begins another."""
    with contextlib.ExitStack() as stack:
        known = {}

        class Runs:
            @staticmethod
            def get(ranks):
                if ranks not in known:
                    undisturbed = Undisturbed(model, tmp_path_factory.mktemp("undisturbed"), ranks)
                    stack.callback(undisturbed.close)
                    known[ranks] = Disturbed(model, tmp_path_factory.mktemp("disturbed"), ranks, undisturbed)
                return known[ranks]

            @staticmethod
            def drop(ranks):
                if ranks in known:
                    run = known.pop(ranks)
                    run.close()
                    print(run.run.log.read_text()[-LOG_CHARACTERS:])

        yield Runs
        for run in known.values():
            run.close()


@pytest.mark.parametrize("number,ranks,case", [(number, ranks, case) for ranks in (1, 2)
                                               for number, case in enumerate(drawn(ranks))])
def test_whatever_dies_nothing_is_lost_and_nothing_is_done_twice(runs, number, ranks, case):
    operation, place, rank, action = case
    print(f"STEMMA_FAULTS_SEED={SEED}, {ranks} ranks, case {number}: {operation}, {place} of "
          f"{'the server' if rank is None else f'rank {rank}'}, {action}")
    try:
        run = runs.get(ranks)
        begun = time.monotonic()
        with run.ends_in_time():
            run.strike(operation, place, rank, action)
            print(f"struck and served again after {time.monotonic() - begun:.2f} s")
            run.check()
    except BaseException:
        runs.drop(ranks)
        raise


@pytest.mark.parametrize("ranks", (1, 2))
def test_an_export_that_was_whole_when_its_worker_died_is_the_answer(runs, ranks):
    """The table's cases send it again as another call, which rightly hears EXPORT_EXISTS."""
    run = runs.get(ranks)
    run.failpoints.arm("export.before_answer", 0, "kill")
    with run.ends_in_time():
        exported = run.client.export(f"whole-{time.monotonic_ns()}")
        assert not run.failpoints.is_armed("export.before_answer", 0)
        assert weights_digest(pathlib.Path(exported)) == run._undisturbed.weights()


def test_an_export_that_was_there_before_is_not_the_answer_of_one_whose_worker_died(runs):
    run = runs.get(1)
    with run.ends_in_time():
        there = pathlib.Path(run.client.export(f"first-{time.monotonic_ns()}")).with_name(f"there-{time.monotonic_ns()}")
        there.mkdir()
        run.failpoints.arm("export.before_answer", 0, "kill")
        with pytest.raises(stemma.StemmaError, match="EXPORT_EXISTS"):
            run.client.export(there.name)
        assert not run.failpoints.is_armed("export.before_answer", 0)


def test_the_checks_see_a_step_that_is_made_twice_and_one_that_is_lost(model, tmp_path):
    undisturbed = Undisturbed(model, tmp_path / "undisturbed", 1)
    (tmp_path / "disturbed").mkdir()
    run = Disturbed(model, tmp_path / "disturbed", 1, undisturbed)
    try:
        run.update()
        run.check()
        groups = [stemma.Group("again", [1, 2, 3], [stemma.Rollout([4, 5], advantage=1.0)])]
        run.client.update_actor(groups, loss=stemma.grpo(), adam=stemma.adamw(1e-3), old="on_policy")
        with pytest.raises(AssertionError):
            run.check()
        with pytest.raises(AssertionError):
            run.update()
        run.sent += 1
        with pytest.raises(AssertionError):
            run.update()
    finally:
        run.close()
        undisturbed.close()


def test_the_table_has_every_place_of_the_sources():
    struck = {place for places in (SERVER, OF_SEVERAL, RANK) for of in places.values() for place in of}
    prefixes = {"row.": _kinds("JournalRow", "row"), "send.": _kinds("ServerMessage", "message"),
                "receive.": _kinds("WorkerMessage", "message")}
    named = named_in([*ROOT.glob("server/**/*.cc"), *ROOT.glob("worker/**/*.cc")]) - set(prefixes)
    made = {prefix + kind for prefix, kinds in prefixes.items() for kind in kinds}
    phases = {place for place in struck if place.startswith("pass.")}  # held to the sources by gang_places_test.py
    assert {place.removesuffix(".before").removesuffix(".after") for place in struck if place.startswith(tuple(prefixes))} \
        == made - set(NOT_PASSED)
    assert {place for place in struck if not place.startswith(tuple(prefixes))} - phases == named


def _kinds(message, oneof):
    """The kinds of a message of the internal protocol, by its definition."""
    text = "".join(path.read_text() for path in sorted((ROOT / "proto/stemma/internal/v1").glob("*.proto")))
    body = text.split(f"message {message} {{")[1].split(f"oneof {oneof} {{")[1].split("}")[0]
    return {line.split("=")[0].split()[1] for line in body.splitlines() if "=" in line}
