"""Each rank is killed and stopped at each named place of a worker (common/base/failpoint.h): while it loads, in Phases A, B
and C, in the reduction, before its vote, in APPLY, in a log-prob pass, in a verification, in an export. The client hears the
truth in time, the gang serves again, nothing is counted twice.

A short run draws some places, and for each a rank and an action (STEMMA_FAULTS_SEED); STEMMA_FAULTS_ALL=1 takes all of
them with every rank and action."""

import itertools
import os
import pathlib
import random
import re
import time

import pytest

from e2e.errors.failpoints import named_in
from e2e.gang.faulted_gang import LocalGang

ROOT = pathlib.Path(__file__).resolve().parents[3]
SEED = int(os.environ.get("STEMMA_FAULTS_SEED", "1"))
LOAD = ["load.begun", "load.met", "load.before_ready"]
OPERATIONS = {
    "update": ["pass.prefix_forward", "pass.suffix", "pass.prefix_backward", "prepare.before_agree", "prepare.in_reduce",
               "prepare.before_vote", "apply.before_step", "apply.in_gather", "apply.before_answer"],
    "log_probs": ["pass.suffix", "log_prob.before_answer"],
    "verify": ["pass.prefix_backward", "prepare.in_reduce", "verify.before_answer"],
    "export": ["export.begun", "export.written", "export.before_answer"],
}
PASSES = [(operation, place) for operation, places in OPERATIONS.items() for place in places]
FAULTS = list(itertools.product(range(2), ("kill", "stop")))


def choose(places, count):
    """All faults at each place, or so many that are drawn."""
    cases = [(*place, *fault) for place in places for fault in FAULTS]
    return cases if os.environ.get("STEMMA_FAULTS_ALL") == "1" else random.Random(SEED).sample(cases, count)


@pytest.fixture(scope="module")
def gang(tmp_path_factory):
    # Every group is split, so a rank that is lost in a phase leaves others in the middle of an exchange.
    gang = LocalGang(tmp_path_factory.mktemp("places"), failpoints=True, flags=("--split-groups", "on"))
    try:
        gang.learn()
        assert gang.expected["update"][0][2] > 0
        yield gang
    finally:
        gang.stop()


@pytest.mark.parametrize("operation,place,rank,action", choose(PASSES, 5))
def test_a_rank_is_lost_at_a_place(gang, operation, place, rank, action):
    if random.Random(f"{SEED} {place} {rank} {action}").random() < 0.7:
        gang.advance(f"before-{time.monotonic_ns()}")  # a loss ends the lineage; at step 0 the request is retried
    before = gang.info()
    begun = time.monotonic()
    gang.failpoints.arm(place, rank, action)
    gang.operate_in_fault(operation, f"at-{time.monotonic_ns()}", lambda: begun)
    assert not gang.failpoints.is_armed(place, rank), "the place was not passed"
    gang.await_generation_after(before)
    gang.check_weights()


@pytest.mark.parametrize("place,rank,action", choose([(place,) for place in LOAD], 1))
def test_a_rank_is_lost_while_it_loads(gang, place, rank, action):
    gang.failpoints.arm("pass.suffix", 0, "kill")  # another generation is to begin
    gang.failpoints.arm(place, rank, action)
    before = gang.info()
    begun = time.monotonic()
    gang.operate_in_fault("log_probs", "load", lambda: begun)
    gang.await_generation_after(before)
    assert not gang.failpoints.is_armed(place, rank), "the place was not passed"
    gang.check_weights()


def test_every_failpoint_of_a_worker_is_struck_here():
    named = {place for place in named_in(ROOT.glob("worker/**/*.cc")) if not place.startswith("checkpoint.")}  # places_test.py
    struck = {place for _, place in PASSES} | set(LOAD)
    assert named == {place for place in struck if not place.startswith("pass.")}
    phases = set(re.findall(r'"(prefix_forward|prefix_backward|suffix)"', (ROOT / "worker/engine/pass_sums.cc").read_text()))
    assert {f"pass.{phase}" for phase in phases} == {place for place in struck if place.startswith("pass.")}
