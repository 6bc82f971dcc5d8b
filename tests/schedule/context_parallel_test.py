"""Context-parallel ranks against transformers in float64: rows of prefixes dealt in pieces, suffixes dealt whole.

Models, meshes, requests, memory policies, placements and who runs which rollout are drawn; the ranks are threads with an engine
each. STEMMA_SEED draws other cases.
"""

import dataclasses
import os
import random

import pytest
from drawn_steps import (LARGE, SHAPE, assert_a_mistake_fails, assert_bf16_is_as_near_as_one_ranks,
                         assert_policies_have_the_same_bits, assert_ten_steps_are_one_ranks, assert_the_oracles,
                         assert_twice_the_same_bits, drawn_options, drawn_request, drawn_shape)

from oracle import compare, hf64, models, requests, step
from oracle.probe import ProbeError

_SEED = int(os.environ.get("STEMMA_SEED", "70"))
MESHES = ("cp=2", "cp=4", "cp=2,tp=2", "dp=2,cp=2")


def drawn(seed):
    """(model, options of the probe, oracle -> request)."""
    rng = random.Random(seed)
    family, (heads, kv_heads) = rng.choice(["llama", "qwen2", "qwen3", "qwen3_moe", "mistral"]), rng.choice([(4, 2), (4, 1), (4, 4), (6, 3)])
    spec = models.Spec(family, hidden=8 * heads if family == "qwen2" else rng.choice([24, 48]), layers=rng.choice([1, 2, 3]),
                       heads=heads, kv_heads=kv_heads, head_size=8 if family == "qwen2" else rng.choice([8, 16]),
                       ffn=12 * rng.randint(2, 5), vocab=rng.choice([96, 97, 101]), tied=rng.random() < 0.5,
                       seed=rng.randrange(2**31), **models.drawn_experts(rng, family))
    # Also prefixes of fewer rows than there are ranks, and none.
    shape = drawn_shape(rng)
    dp, tp = rng.choice([1, 1, 2]), rng.choice([1, 1, 2 if heads % 4 == 0 else 3])
    mesh = f"dp={dp},cp={rng.choice([2, 2, 3, 4])},tp={tp}"
    options = drawn_options(rng, mesh, dp, ["REUSE", "REUSE", "REUSE", "DENSE"], seed)
    options["context_seed"] = rng.choice([0, *[rng.randrange(1, 2**31)] * 3])  # 0: what the planner deals
    return spec, options, drawn_request(rng, shape, seed)


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 40))
def test_ranks_that_share_rows_have_the_gradients_of_transformers(seed, tmp_path, probe):
    assert_the_oracles(drawn(seed), tmp_path, probe, seed)


def test_the_drawn_cases_reach_everything():
    cases = [drawn(seed)[1] for seed in range(_SEED, _SEED + 40)]
    sizes = [dict(axis.split("=") for axis in options["mesh"].split(",")) for options in cases]
    assert {"2", "3", "4"} == {size["cp"] for size in sizes}
    assert any(size["tp"] != "1" for size in sizes) and any(size["dp"] != "1" for size in sizes)
    assert any("split_seed" in options for options in cases), "a hot group inside the mesh"
    assert {"REUSE", "DENSE"} == {options["schedule"] for options in cases}
    assert any(options.get("prefix_block_rows") and options["prefix_policy"] == "S5" for options in cases)


def made_setting(folder, spec, shape, loss, **fields):
    """(model's directory, request, what the oracle says)."""
    directory = models.make(str(folder / "model"), spec)
    oracle = hf64.Hf64(directory)
    request = requests.make(oracle, shape, requests.LOSSES[loss], masks="none", **fields)
    return directory, request, step.run(oracle, request)


QWEN3, CLIPPED = dataclasses.replace(models.PARITY["qwen3"], vocab=97, layers=3), {"max_grad_norm": 0.5}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    return made_setting(tmp_path_factory.mktemp("cp"), QWEN3, SHAPE, "vanilla", adam=CLIPPED)


@pytest.mark.parametrize("seed", (0, 3))
@pytest.mark.parametrize("mesh", MESHES)
def test_the_same_ranks_twice_have_the_same_bits(mesh, seed, setting, probe):
    assert_twice_the_same_bits(probe, setting, mesh, context_seed=seed)


@pytest.mark.parametrize("seed", (0, 3))
@pytest.mark.parametrize("mesh", MESHES)
def test_the_policies_of_one_mesh_have_the_same_bits(mesh, seed, setting, probe):
    assert_policies_have_the_same_bits(probe, setting, mesh, context_seed=seed)


@pytest.mark.parametrize("mesh", MESHES)
def test_ten_steps_of_a_mesh_are_those_of_one_rank(mesh, setting, probe):
    assert_ten_steps_are_one_ranks(probe, setting, mesh, context_seed=11)


@pytest.mark.parametrize("mesh", ("cp=2", "cp=4"))
def test_bf16_is_as_near_to_the_truth_as_on_one_rank(mesh, setting, probe):
    assert_bf16_is_as_near_as_one_ranks(probe, setting, mesh, context_seed=5)


# Each spoils gradients; K/V in the places of others spoil the forward, too.
@pytest.mark.parametrize("control", ("skipped_reduction", "mean_for_sum", "gradients_of_others", "kv_of_others"))
@pytest.mark.parametrize("seed", (0, 3))
@pytest.mark.parametrize("mesh", MESHES)
def test_a_mistake_between_the_ranks_fails(control, seed, mesh, setting, probe):
    assert_a_mistake_fails(probe, setting, mesh, in_log_probs=control == "kv_of_others", cp_control=control, context_seed=seed)


def test_data_ranks_that_do_not_sum_their_gradients_fail(setting, probe):
    directory, request, expected = setting
    answer, tensors = probe.run(directory, request, mesh="cp=2", rank_control="skipped_reduction")
    errors = compare.step_errors(answer, tensors, expected)
    assert max(errors.gradients.values()) > LARGE, errors.report()


# Rollouts that ranks cut by rows: every one that has two rows for each rank, behind prefixes and without.

CUT_SHAPE = [(9, [14, 1, 16]), (1, [22, 5]), (14, [3, 33]), (6, [17])]


def drawn_cut(seed):
    """Like drawn(), with longer rollouts, of which all are cut that can be."""
    spec, options, _ = drawn(seed)
    rng = random.Random(seed + 1)
    shape = [(rng.choice([1, 2, rng.randint(3, 20)]), [rng.choice([rng.randint(1, 9), rng.randint(8, 40)]) for _ in range(rng.randint(1, 4))])
             for _ in range(rng.randint(1, 4))]
    shape[0][1][0] = 8 + shape[0][1][0]  # one at least, on as many as four ranks
    return spec, options | {"schedule": "REUSE", "context_seed": seed, "context_cut": True}, drawn_request(rng, shape, seed)


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 40))
def test_ranks_that_cut_rollouts_have_the_gradients_of_transformers(seed, tmp_path, probe):
    assert assert_the_oracles(drawn_cut(seed), tmp_path, probe, seed)["cut_rollouts"] > 0


@pytest.fixture(scope="module")
def cut_setting(tmp_path_factory):
    return made_setting(tmp_path_factory.mktemp("cut"), QWEN3, CUT_SHAPE, "gspo", adam=CLIPPED)


@pytest.mark.parametrize("mesh", MESHES)
def test_the_policies_of_cut_rollouts_have_the_same_bits(mesh, cut_setting, probe):
    assert_policies_have_the_same_bits(probe, cut_setting, mesh, context_seed=3, context_cut=True)


@pytest.mark.parametrize("mesh", MESHES)
def test_ten_steps_of_cut_rollouts_are_those_of_one_rank(mesh, cut_setting, probe):
    assert_ten_steps_are_one_ranks(probe, cut_setting, mesh, context_seed=11, context_cut=True)


@pytest.mark.parametrize("mesh", ("cp=2", "cp=4"))
def test_cut_rollouts_in_bf16_are_as_near_to_the_truth_as_on_one_rank(mesh, cut_setting, probe):
    assert_bf16_is_as_near_as_one_ranks(probe, cut_setting, mesh, context_seed=5, context_cut=True)


# K/V and log-probs in the places of others spoil the log-probs, gk and gv of others the gradients alone.
@pytest.mark.parametrize("control", ("skipped_reduction", "mean_for_sum", "gradients_of_others", "kv_of_others", "log_probs_of_others"))
@pytest.mark.parametrize("mesh", MESHES)
def test_a_mistake_between_the_ranks_of_a_cut_rollout_fails(control, mesh, cut_setting, probe):
    assert_a_mistake_fails(probe, cut_setting, mesh, in_log_probs=control in ("kv_of_others", "log_probs_of_others"),
                           cp_control=f"cut_{control}", context_seed=3, context_cut=True)


@pytest.fixture(scope="module")
def long_rollouts(tmp_path_factory):
    """A model, and two rollouts of which no rank has room for the longer one."""
    spec = dataclasses.replace(models.PARITY["llama"], vocab=97, layers=3, positions=512)
    return made_setting(tmp_path_factory.mktemp("long"), spec, [(9, [400, 60])], "vanilla")


def with_the_least_budget(probe, directory, request, mesh):
    """(answer, tensors) of the least budget, to 64 KiB, that a plan fits."""
    low, high, found = 0, 1 << 28, None
    while high - low > 1 << 16:
        middle = (low + high) // 2
        try:
            found = probe.run(directory, request, mesh=mesh, memory_budget_bytes=middle)
            high = middle
        except ProbeError as error:
            assert "memory_budget_bytes" in str(error), error
            low = middle
    return found


def test_a_rollout_that_no_rank_has_room_for_is_cut_and_exact(long_rollouts, probe):
    directory, request, expected = long_rollouts
    alone, _ = with_the_least_budget(probe, directory, request, "dp=1")
    for mesh, part in (("cp=2", 0.75), ("cp=4", 0.5), ("cp=2,tp=2", 0.6)):
        answer, tensors = with_the_least_budget(probe, directory, request, mesh)
        assert answer["cut_rollouts"] > 0, mesh
        assert answer["planned_bytes"] < part * alone["planned_bytes"], mesh
        errors = compare.step_errors(answer, tensors, expected)
        assert errors.worst <= 1, f"{mesh}: {errors.report()}"


# At most budgets some rollouts are cut, at some all are, on stages waves are smaller, and at each the numbers are the same.
@pytest.mark.parametrize("mesh", ("cp=2", "cp=4", "cp=2,pp=2", "dp=2,cp=2"))
def test_whatever_a_budget_cuts_is_exact(mesh, long_rollouts, probe):
    directory, request, expected = long_rollouts
    cuts = set()
    for budget in range(2_000_000, 8_000_000, 400_000):
        try:
            answer, tensors = probe.run(directory, request, mesh=mesh, memory_budget_bytes=budget)
        except ProbeError as error:
            assert "memory_budget_bytes" in str(error), error
            continue
        cuts.add(answer["cut_rollouts"])
        errors = compare.step_errors(answer, tensors, expected)
        assert errors.worst <= 1, f"{mesh}, {budget} bytes: {errors.report()}"
    assert cuts - {0}, mesh
