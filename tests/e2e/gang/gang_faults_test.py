"""Random losses of a rank, with real processes: whatever dies when, the client hears the truth in time, the gang serves
again, no process is left, and the weights are those of the step that the server names.

STEMMA_FAULTS_SEED and STEMMA_FAULTS_COUNT choose the cases; a failure prints its seed and case."""

import dataclasses
import os
import random
import signal
import threading
import time

import pytest

from e2e.gang.faulted_gang import LocalGang

SEED = int(os.environ.get("STEMMA_FAULTS_SEED", "1"))
COUNT = int(os.environ.get("STEMMA_FAULTS_COUNT", "3"))


@dataclasses.dataclass(frozen=True)
class Case:
    operation: str   # update, log_probs, export
    rank: int
    signal: signal.Signals
    delay: float     # of the operation's usual seconds


def draw_cases():
    rng = random.Random(SEED)
    return [Case(operation=rng.choice(["update"] * 4 + ["log_probs", "export"]), rank=rng.randrange(2),
                 signal=rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP]), delay=rng.uniform(0, 1.2))
            for _ in range(COUNT)]


@pytest.fixture(scope="module")
def gang(tmp_path_factory):
    # Whether groups are divided would follow the links, which each generation measures anew.
    gang = LocalGang(tmp_path_factory.mktemp("faults"), flags=("--split-groups", "on"))
    try:
        gang.learn()
        yield gang
    finally:
        gang.stop()


def fault(gang, case, number):
    before = gang.info()
    struck = []

    def strike():
        struck.append(time.monotonic())
        os.kill(before["ranks"][case.rank]["pid"], case.signal)

    def struck_at():
        timer.join()
        return struck[0]

    timer = threading.Timer(case.delay * gang.seconds[case.operation], strike)
    timer.start()
    gang.operate_in_fault(case.operation, f"fault-{number}", struck_at)
    timer.join()
    gang.await_generation_after(before)


@pytest.mark.parametrize("number", range(COUNT))
def test_a_rank_is_lost(gang, number):
    case = draw_cases()[number]
    print(f"STEMMA_FAULTS_SEED={SEED}, case {number}: {case}")
    gang.advance(f"before-{number}")
    fault(gang, case, number)
    gang.advance(f"after-{number}")
