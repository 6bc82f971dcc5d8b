"""`stemma local` that keeps its requests, for tests that kill what it runs: how it is started, what its processes are, and a
fixed run of requests whose weights do not depend on measured speeds."""

import os
import pathlib
import signal
import subprocess

import stemma
from e2e.errors.server import BUILD, wait_for
from e2e.file_digest import weights_digest
from e2e.gang.faulted_gang import is_alive
from e2e.gang.small_groups import groups_of

REQUESTS = 6  # of the fixed run
STEPS_OF_REQUEST = 4
RETRIES = 12  # of a client while a server starts again: 40 s in all
# What the planner would choose by the machine's speed: other waves are other sums, and so other bits.
PLANNED = ("--schedule", "reuse", "--wave-suffixes", "2", "--split-groups", "off", "--threads", "1")


class DurableRun:
    """One `stemma local` on a data directory, with the programs of `failpoints` or those that users run. Close it, or use it in a
    `with`."""

    def __init__(self, model, data, ranks=1, flags=(), failpoints=None, dtype="fp32", planned=PLANNED):
        self.ranks = ranks
        folder = pathlib.Path(data)
        folder.mkdir(exist_ok=True)
        ready, self.log = folder / "ready", folder / "log"
        ready.unlink(missing_ok=True)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [BUILD / "bin/stemma" if failpoints is None else failpoints.stemma, "local", "--model", model, "--data", folder / "data",
                 "--workers", str(ranks), "--listen", "127.0.0.1:0", "--ready-file", ready, "--dtype", dtype, *planned, *flags],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env=None if failpoints is None else failpoints.environment)
        wait_for(lambda: ready.exists() or self.process.poll() is not None, "server that serves")
        assert ready.exists(), self.log.read_text()
        self.address = ready.read_text().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def kill(self):
        """The whole machine goes: nothing is saved before."""
        children = self.children()
        self.process.kill()
        self.process.wait(30)
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for pid in children:
            wait_for(lambda pid=pid: not is_alive(pid), "end of a process")

    def client(self, retries=RETRIES):
        return stemma.Client(self.address, retries=retries)

    def children(self):
        """{pid: program} of what runs now."""
        out = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False)
        rows = [line.split() for line in out.stdout.splitlines()]
        return {int(pid): name for pid, name in rows if name.startswith("stemma-")}

    def times_served(self):
        """How often all ranks had the model, at a start or after a loss, as `stemma local` says."""
        return sum(line.startswith("stemma local: ") and line.rstrip().endswith((" has the model", " have the model again", "Ctrl-C stops"))
                   for line in self.log.read_text().splitlines())


def send(client, number, ranks=1):
    """Request `number` of the fixed run: STEPS_OF_REQUEST steps of a group for each rank, whose old log-probs are those of the
    weights before them."""
    groups = groups_of(number, [(40, 5)] * 2 * ranks)
    return client.update_actor(groups, loss=stemma.grpo(), adam=stemma.adamw(1e-3), old="policy", mini_batch=ranks, epochs=2,
                               request_id=f"request-{number}", return_log_probs=True)


def facts(result):
    """What an answer says that no loss may change. Log-probs are in the server's memory: after its end they are not there."""
    log_probs = {key: list(value.log_probs) for key, value in result.log_probs.items()} if result.log_probs else {}
    return [(step.step, step.metrics["actor/loss"], step.metrics["actor/grad_norm"]) for step in result.steps], log_probs


def weights_after(run, name):
    """The digest of an export's weights."""
    with run.client() as client:
        return weights_digest(pathlib.Path(client.export(name)))
