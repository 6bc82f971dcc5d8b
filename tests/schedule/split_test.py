"""Split groups: several ranks compute rollouts of one group, from the K/V of its owner. Against transformers in float64.

Which ranks share which groups, which of them owns it and which rollout runs where are drawn, and so are the memory policies.
STEMMA_SEED draws others.
"""

import os
import random

import pytest
import torch

from oracle import compare, requests, step

_SEED = int(os.environ.get("STEMMA_SEED", "40"))
_LOSSES = sorted(requests.LOSSES)
LARGE = 1e6  # tolerances: a relative error of 1e-6

SHAPE = [(9, [4, 1, 6]), (2, [2, 5]), (14, [3, 3]), (6, [7])]


def drawn(seed):
    """(options of the probe, request): ragged groups, some of two prompt tokens, of one rollout, or without a prefix."""
    rng = random.Random(seed)
    shape = [(rng.choice([1, 2, rng.randint(3, 40)]), [rng.randint(1, 12) for _ in range(rng.choice([1, 2, rng.randint(2, 7)]))])
             for _ in range(rng.randint(1, 4))]
    shape.append((rng.randint(2, 30), [rng.randint(1, 9) for _ in range(rng.randint(2, 4))]))  # one at least can be split
    old_from = rng.choice(["CLIENT", "WEIGHTS"])
    loss = requests.LOSSES[rng.choice(_LOSSES)]
    options = {"mesh": f"dp={rng.randint(2, 4)}", "placement_seed": rng.randrange(1, 2**31), "split_seed": seed,
               "split_ranks": rng.choice([0, 2, 3]), "waves": rng.choice([1, 2, 3, 0]),
               "layout": rng.choice(["PACKED", "PADDED"]), "split_policies": True}
    return options, lambda oracle: requests.make(oracle, shape, loss, seed=seed, old_from=old_from)


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 18))
def test_split_groups_have_the_gradients_of_transformers(seed, model_table, probe):
    model = ("llama_tied", "qwen2", "qwen3")[seed % 3]
    oracle = model_table.oracle(model)
    options, make = drawn(seed)
    request = make(oracle)
    answer, tensors = probe.run(model_table.directory(model), request, **options)
    errors = compare.step_errors(answer, tensors, step.run(oracle, request))
    assert errors.worst <= 1, f"STEMMA_SEED={seed}, {answer['split_groups']} split, {options}: {errors.report()}"


def test_the_drawn_cases_split(model_table, probe):
    split = 0
    for seed in range(_SEED, _SEED + 6):
        options, make = drawn(seed)
        answer, _ = probe.run(model_table.directory("qwen3"), make(model_table.oracle("qwen3")), **options)
        split += answer["split_groups"]
        assert (answer["sums"]["split_bytes"] > 0) == (answer["split_groups"] > 0)
    assert split >= 4, "cases without a split group show nothing"


@pytest.fixture(scope="module")
def setting(model_table):
    oracle = model_table.oracle("qwen3")
    request = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], masks="none", adam={"max_grad_norm": 0.5})
    return model_table.directory("qwen3"), request, step.run(oracle, request)


@pytest.mark.parametrize("mesh, shared_by, shard", (
    ("dp=2", 2, False), ("dp=3", 2, False), ("dp=3", 3, False), ("dp=4", 3, False), ("dp=2,pp=2", 2, False), ("dp=3,pp=2", 3, False),
    ("dp=2,pp=2", 2, True)))
def test_one_two_and_more_helpers(mesh, shared_by, shard, setting, probe):
    directory, request, expected = setting
    answer, tensors = probe.run(directory, request, mesh=mesh, split_seed=1, split_ranks=shared_by, waves=2, shard=shard)
    assert answer["split_groups"] == 3
    errors = compare.step_errors(answer, tensors, expected)
    assert errors.worst <= 1, errors.report()


def test_a_rank_may_be_left_without_work(model_table, probe):
    """Two rollouts, three ranks: one owner, one helper, one that only joins the reduction."""
    oracle = model_table.oracle("llama_tied")
    request = requests.make(oracle, [(11, [4, 7])], requests.LOSSES["gpg"], masks="none")
    answer, tensors = probe.run(model_table.directory("llama_tied"), request, mesh="dp=3", split_seed=3, split_ranks=3)
    assert answer["split_groups"] == 1
    assert compare.step_errors(answer, tensors, step.run(oracle, request)).worst <= 1


def test_the_same_plan_twice_has_the_same_bits(setting, probe):
    directory, request, _ = setting
    first, second = (probe.run(directory, request, mesh="dp=3", split_seed=1, split_ranks=3, dtype="fp32", apply=True)[1]
                     for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("model", ("llama_tied", "qwen2", "qwen3"))
def test_steps_with_split_groups_are_those_of_one_rank(model, model_table, probe):
    oracle = model_table.oracle(model)
    request = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], masks="none", old_from="WEIGHTS",
                            adam={"max_grad_norm": 1.0})
    directory = model_table.directory(model)
    one = probe.run(directory, request, mesh="dp=1", apply=True)[1]
    split_answer, several = probe.run(directory, request, mesh="dp=3", split_seed=2, split_ranks=3, split_policies=True, apply=True)
    assert split_answer["split_groups"] == 3
    for name, weight in one.items():
        if name.startswith("weight."):
            # The masters after a step of AdamW, which divides by the gradient's own size: a relative error of 1e-16 / eps of lr.
            assert (several[name] - weight).abs().max().item() < 1e-12, name


def test_bf16_is_as_near_to_the_truth_as_on_one_rank(setting, probe):
    directory, request, expected = setting

    def error(**options):
        _, tensors = probe.run(directory, request, dtype="bf16", **options)
        squares = [((tensors["grad." + name].double() - value).norm() / value.norm()).item()**2
                   for name, value in expected.gradients.items()]
        return (sum(squares) / len(squares))**0.5

    # Both round everywhere; K/V travel as they lie and gK/gV in fp32, so nothing but the order of sums differs.
    assert error(mesh="dp=3", split_seed=1, split_ranks=3) <= 1.05 * error(mesh="dp=1")


@pytest.mark.parametrize("control, mesh", (
    *((control, "dp=3") for control in ("split_wrong_rows", "split_dropped", "split_twice", "split_other_layer")),
    *((control, "dp=2,pp=2") for control in ("split_wrong_rows", "split_dropped", "split_twice"))))  # stages of one layer
def test_a_wrong_exchange_fails(control, mesh, setting, probe):
    directory, request, expected = setting
    answer, tensors = probe.run(directory, request, mesh=mesh, split_seed=1, split_ranks=3, waves=2, rank_control=control)
    errors = compare.step_errors(answer, tensors, expected)
    if control == "split_other_layer":
        assert errors.log_prob > LARGE and errors.loss > LARGE, errors.report()
    else:
        assert errors.log_prob <= 1 and errors.loss <= 1, f"the forward is exact: {errors.report()}"
        assert errors.gradients["model.layers.0.input_layernorm.weight"] > LARGE, errors.report()
