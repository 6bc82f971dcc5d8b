"""Data-parallel ranks against transformers in float64. Requests, and which rank computes which group, are drawn.

The ranks are threads with an engine each; gradients are read where they are owned. STEMMA_SEED draws other cases.
"""

import math
import os
import random

import pytest
from drawn_steps import assert_twice_the_same_bits

from oracle import compare, requests, step

_SEED = int(os.environ.get("STEMMA_SEED", "20"))
_LOSSES = sorted(requests.LOSSES)
LARGE = 1e6  # tolerances: a relative error of 1e-6

SHAPE = [(9, [4, 1, 6]), (1, [2, 5]), (14, [3, 3]), (6, [7])]


def drawn(seed):
    """(ranks, seed of the placement, request): ragged groups, some of one rollout or of one prompt token."""
    rng = random.Random(seed)
    shape = [(rng.choice([1, 2, rng.randint(3, 40)]), [rng.randint(1, 12) for _ in range(rng.choice([1, rng.randint(2, 6)]))])
             for _ in range(rng.randint(1, 7))]
    modes = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "prompt-mean"]
    return rng.randint(2, 4), rng.randrange(2**31), lambda oracle: requests.make(
        oracle, shape, requests.LOSSES[rng.choice(_LOSSES)], seed=seed, loss_agg_mode=rng.choice(modes))


def grad_norm(gradients):
    return math.sqrt(sum(value.square().sum().item() for value in gradients.values()))


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 12))
def test_ranks_have_the_gradients_of_transformers(seed, model_table, probe):
    model = ("llama_tied", "qwen2", "qwen3")[seed % 3]
    oracle = model_table.oracle(model)
    ranks, placement_seed, make = drawn(seed)
    request = make(oracle)
    expected = step.run(oracle, request)
    for schedule in ("REUSE", "DENSE"):
        answer, tensors = probe.run(model_table.directory(model), request, schedule, waves=3, mesh=f"dp={ranks}",
                                    placement_seed=placement_seed)
        errors = compare.step_errors(answer, tensors, expected)
        assert errors.worst <= 1, f"STEMMA_SEED={seed}, {ranks} ranks, {schedule}: {errors.report()}"
        norm = grad_norm(expected.gradients)
        assert abs(answer["grad_norm"] - norm) <= compare.GRADIENT * norm, f"STEMMA_SEED={seed}: the norm"


@pytest.fixture(scope="module")
def setting(model_table):
    oracle = model_table.oracle("qwen3")
    request = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], masks="none", adam={"max_grad_norm": 0.5})
    return model_table.directory("qwen3"), request, step.run(oracle, request)


def test_the_same_ranks_twice_have_the_same_bits(setting, probe):
    assert_twice_the_same_bits(probe, setting, "dp=3")


@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_ten_steps_of_ranks_are_those_of_one(ranks, model_table, probe):
    oracle = model_table.oracle("llama_tied")
    request = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], masks="none", old_from="WEIGHTS",
                            adam={"max_grad_norm": 1.0})
    request = requests.with_fields(request, ppo_mini_batch_size=2, ppo_epochs=5)
    directory = model_table.directory("llama_tied")
    one, several = (probe.run(directory, request, mesh=f"dp={n}", apply=True)[1] for n in (1, ranks))
    unit = 10 * request["header"]["adam"]["learning_rate"]
    for name, weight in one.items():
        if name.startswith("weight."):
            # AdamW's first steps divide by the gradient's own size: a relative error of 1e-16 / eps = 1e-8 of lr.
            assert (several[name] - weight).abs().max().item() < 1e-6 * unit, name


@pytest.mark.parametrize("control", ("skipped_reduction", "mean_for_sum"))
def test_a_wrong_sum_fails(control, setting, probe):
    directory, request, expected = setting
    answer, tensors = probe.run(directory, request, mesh="dp=2", rank_control=control)
    errors = compare.step_errors(answer, tensors, expected)
    assert errors.log_prob <= 1 and errors.loss <= 1, f"the forward is exact: {errors.report()}"
    assert min(errors.gradients.values()) > LARGE, "every gradient is off"
    norm = grad_norm(expected.gradients)
    assert abs(answer["grad_norm"] - norm) > 1e-3 * norm


def test_weights_that_come_back_in_wrong_places_fail(setting, probe):
    directory, request, _ = setting
    right, wrong = (probe.run(directory, request, mesh="dp=2", rank_control=control, apply=True)[1]
                    for control in ("none", "swapped_weights"))
    assert any((right[name] - wrong[name]).abs().max().item() > 1e-3 for name in right if name.startswith("weight."))
