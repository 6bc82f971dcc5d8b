"""A gang of two real workers that loses ranks, for tests: what its steps are without faults, what a client is told when
one dies, and what must hold afterwards."""

import pathlib
import random
import signal
import subprocess
import time

import pytest

import stemma
from e2e.errors.failpoints import Failpoints
from e2e.errors.server import BUILD, wait_for
from e2e.gang.small_groups import make_model

LOST_AFTER_S = 4  # --worker-lost-after
ANSWER_S = 15     # from the fault to the client's error; a request that is retried takes as long as the gang needs
STEPS = 3         # whose losses are known
TOLERANCE = 1e-11  # in fp64 sums in another order differ by about 1e-15; a calibrated plan may cut other waves
# What is lost is not computed again, so that a loss shows in the lineage; tests/e2e/recovery has the other mode.
REWIND = ("--durability", "rewind")
# What a fault may answer: the weights are gone, the pass or export was cut, or nothing serves at this moment.
TRUTHS = {"ROLLED_BACK", "LINEAGE_MISMATCH", "ATTEMPTS_EXHAUSTED", "RECOVERING", "STARTING"}


def groups_of(step):
    rng = random.Random(step)

    def tokens(count):
        return [rng.randrange(512) for _ in range(count)]

    return [stemma.Group(f"g{i}", tokens(60), [stemma.Rollout(tokens(40), advantage=rng.uniform(-1, 1)) for _ in range(6)])
            for i in range(5)]


def operate(client, operation, step, name):
    if operation == "log_probs":
        rollouts = client.log_probs(groups_of(step))
        return [value for key in sorted(rollouts) for value in rollouts[key].log_probs]
    if operation == "export":
        return client.export(name)
    if operation == "verify":
        found = client.verify(groups_of(step), stemma.grpo(), stemma.adamw(1e-3), old="on_policy")
        assert found.error < TOLERANCE, found
        return [run[key] for run in (found.reuse, found.dense) for key in ("actor/loss", "actor/grad_norm")]
    result = client.update_actor(groups_of(step), loss=stemma.grpo(), adam=stemma.adamw(1e-3), old="on_policy", request_id=name)
    metrics = result.steps[0].metrics
    return metrics["actor/loss"], metrics["actor/grad_norm"], metrics.get("ranks/split_bytes", 0)


def check_values(values, expected):
    assert values == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)


# Not cli_testing's: that brings stubs of its own, named as the client's package is.
def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class Server:
    """What a test asks a running server with two workers. After a fresh start: `expected`, of each operation what it is at
    step i (an update's loss, norm and bytes of split groups, the log-probs of step 0's groups)."""

    def __init__(self, address):
        self._address = address
        self.expected = {"update": [], "log_probs": [], "verify": []}
        self.seconds = {}  # of an operation, undisturbed

    def client(self):
        return stemma.Client(self._address, retries=0)

    def info(self):
        with self.client() as client:
            return client.info()

    def learn(self):
        with self.client() as client:
            for step in range(STEPS):
                for operation in ("log_probs", "verify", "update", "export"):
                    begun = time.monotonic()
                    value = operate(client, operation, step if operation == "update" else 0, f"learn-{step}")
                    self.seconds[operation] = time.monotonic() - begun
                    if operation in self.expected:
                        self.expected[operation].append(value)

    def serves(self):
        with self.client() as client:
            return client.model()["state"] == "IDLE" and client.info()["workers_connected"] == 2

    def model_step(self):
        with self.client() as client:
            return int(client.model()["step"])

    def advance(self, name):
        """One step more, if its numbers are known: they are those of the step that the server says it is."""
        step = self.model_step()
        if step < STEPS:
            with self.client() as client:
                check_values(operate(client, "update", step, name), self.expected["update"][step])

    def check_weights(self):
        """They are those of the step that the server says it is, if their numbers are known."""
        step = self.model_step()
        if step < STEPS:
            with self.client() as client:
                check_values(operate(client, "log_probs", 0, "check"), self.expected["log_probs"][step])

    def operate_in_fault(self, operation, name, struck_at):
        """Does it while a rank is lost: its numbers are right, or the error is a truth that comes in time.
        struck_at(): the time of the fault, after an error."""
        step = self.model_step()
        try:
            with self.client() as client:
                values = operate(client, operation, step if operation == "update" else 0, name)
            if operation in self.expected and step < STEPS:
                check_values(values, self.expected[operation][step])
        except stemma.StemmaError as error:
            answered = time.monotonic()
            assert error.reason in TRUTHS, error
            assert answered - struck_at() <= ANSWER_S, error

    def await_generation_after(self, before):
        """`before`: info() of the generation that is lost. Its processes end, another serves."""
        wait_for(lambda: self.info()["generation"] > before["generation"] and self.serves(),
                 f"generation after {before['generation']} that serves")
        for rank in before["ranks"]:
            wait_for(lambda: not is_alive(rank["pid"]), f"end of process {rank['pid']}")
        assert self.model_step() in (0, 1), "a loss begins again; only a request that was retried may have been applied since"


class LocalGang(Server):
    """`stemma local` with two workers, with failpoints or without. `flags`: more of `stemma local`."""

    def __init__(self, folder, failpoints=False, flags=()):
        make_model(folder / "model")
        ready, self.log = folder / "ready", folder / "log"
        self.failpoints = Failpoints(folder) if failpoints else None
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [self.failpoints.stemma if failpoints else BUILD / "bin/stemma", "local", "--model", folder / "model", "--data", folder / "data", "--dtype", "fp64",
                 "--threads", "1", "--workers", "2", "--worker-lost-after", str(LOST_AFTER_S), "--listen", "127.0.0.1:0",
                 "--ready-file", ready, *REWIND, *flags], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env=self.failpoints.environment if failpoints else None)
        wait_for(lambda: ready.exists() or self._process.poll() is not None, "gang that serves")
        assert ready.exists(), self.log.read_text()
        super().__init__(ready.read_text().strip())

    def stop(self):
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
