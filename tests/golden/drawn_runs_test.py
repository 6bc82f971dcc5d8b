"""Whole training runs, drawn: any model on any mesh of up to four ranks under any memory settings, with losses, moves and checkpoints
on the way, has at every moment the weights of the oracle, which trains alone in float64.

STEMMA_RUNS_SEED and STEMMA_RUNS_COUNT choose the runs, STEMMA_RUNS_RANKS the most ranks of a mesh (the same seed draws other runs
then); a failure prints its seed and its story."""

import os

import pytest

from golden.drawn_run import DrawnRun

SEED = int(os.environ.get("STEMMA_RUNS_SEED", "1"))
COUNT = int(os.environ.get("STEMMA_RUNS_COUNT", "3"))
EVENTS = 8


@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_a_drawn_run_has_the_weights_of_the_oracle(seed, tmp_path):
    print(f"STEMMA_RUNS_SEED={seed} STEMMA_RUNS_COUNT=1")
    run = DrawnRun(seed, tmp_path)
    try:
        run.go_on(EVENTS)
    finally:
        run.close()


@pytest.mark.parametrize("control", ["stays", "forgets moments"])
def test_control_a_checkpoint_that_only_the_product_loads_whole_shows(control, tmp_path):
    run = DrawnRun(1, tmp_path, controls=(control,))
    try:
        run.saves()
        run.request()
        with pytest.raises(AssertionError, match="in units of the tolerance"):
            run.loads()
            run.request()
    finally:
        run.close()
