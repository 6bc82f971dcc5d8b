"""Tensor-parallel ranks against transformers in float64: heads, FFN columns and the vocabulary cut over ranks, rows between.

Models, meshes, requests, memory policies and placements are drawn; the ranks are threads with an engine each, and whole tensors
are put together from their boxes, which have to agree where ranks hold the same one. STEMMA_SEED draws other cases.
"""

import dataclasses
import os
import random

import pytest
from drawn_steps import (SHAPE, assert_a_mistake_fails, assert_bf16_is_as_near_as_one_ranks,
                         assert_policies_have_the_same_bits, assert_ten_steps_are_one_ranks, assert_the_oracles,
                         assert_twice_the_same_bits, drawn_options, drawn_request)

from oracle import hf64, models, requests, step

_SEED = int(os.environ.get("STEMMA_SEED", "60"))


def drawn_model(rng):
    """A model, and the sizes of tp that can cut it: whole heads, K/V heads or their copies, a vocabulary that need not divide."""
    family = rng.choice(["llama", "qwen2", "qwen3", "qwen3_moe", "mistral"])
    heads, kv_heads, sizes = rng.choice([(4, 2, (2, 4)), (4, 1, (2, 4)), (4, 4, (2, 4)), (6, 3, (3, 6)), (2, 2, (2,))])
    head_size = 8 if family == "qwen2" else rng.choice([8, 16])
    return models.Spec(family, hidden=8 * heads if family == "qwen2" else rng.choice([24, 48]), layers=rng.choice([1, 2, 3]),
                       heads=heads, kv_heads=kv_heads, head_size=head_size, ffn=12 * rng.randint(2, 5),
                       vocab=rng.choice([96, 97, 101]), tied=rng.random() < 0.5, seed=rng.randrange(2**31),
                       **models.drawn_experts(rng, family)), sizes


def drawn(seed):
    """(model, options of the probe, oracle -> request)."""
    rng = random.Random(seed)
    spec, sizes = drawn_model(rng)
    shape = [(rng.choice([1, 2, rng.randint(3, 40)]), [rng.randint(1, 12) for _ in range(rng.choice([1, rng.randint(2, 6)]))])
             for _ in range(rng.randint(1, 5))]
    dp = rng.choice([1, 2])
    mesh = f"dp={dp},tp={rng.choice(sizes)}"
    options = drawn_options(rng, mesh, dp, ["REUSE", "REUSE", "DENSE"], seed)
    return spec, options, drawn_request(rng, shape, seed)


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 40))
def test_ranks_of_one_copy_have_the_gradients_of_transformers(seed, tmp_path, probe):
    assert_the_oracles(drawn(seed), tmp_path, probe, seed)


def test_the_drawn_cases_reach_everything():
    cases = [drawn(seed)[:2] for seed in range(_SEED, _SEED + 40)]
    tp = [int(options["mesh"].split("tp=")[1]) for _, options in cases]
    assert {2, 3, 4} <= set(tp)
    assert any(size > spec.kv_heads for size, (spec, _) in zip(tp, cases)), "K/V heads that several ranks hold"
    assert any(spec.vocab % size for size, (spec, _) in zip(tp, cases)), "a vocabulary that does not divide"
    assert any("split_seed" in options for _, options in cases), "a hot group inside the mesh"
    assert {"REUSE", "DENSE"} == {options["schedule"] for _, options in cases}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """K/V heads that two of four ranks hold, biases or QK-norms, and a vocabulary that does not divide."""
    directory = models.make(str(tmp_path_factory.mktemp("tp") / "qwen3"),
                            dataclasses.replace(models.PARITY["qwen3"], vocab=97, layers=3))
    oracle = hf64.Hf64(directory)
    request = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], masks="none", adam={"max_grad_norm": 0.5})
    return directory, request, step.run(oracle, request)


@pytest.mark.parametrize("mesh", ("tp=2", "tp=4", "dp=2,tp=2"))
def test_the_same_ranks_twice_have_the_same_bits(mesh, setting, probe):
    assert_twice_the_same_bits(probe, setting, mesh)


@pytest.mark.parametrize("mesh", ("tp=2", "tp=4", "dp=2,tp=2"))
def test_the_policies_of_one_mesh_have_the_same_bits(mesh, setting, probe):
    assert_policies_have_the_same_bits(probe, setting, mesh)


@pytest.mark.parametrize("mesh", ("tp=2", "tp=4", "dp=2,tp=2"))
def test_ten_steps_of_a_mesh_are_those_of_one_rank(mesh, setting, probe):
    assert_ten_steps_are_one_ranks(probe, setting, mesh)


@pytest.mark.parametrize("mesh", ("tp=2", "tp=4"))
def test_bf16_is_as_near_to_the_truth_as_on_one_rank(mesh, setting, probe):
    assert_bf16_is_as_near_as_one_ranks(probe, setting, mesh)


# What each mistake spoils: everything, or in the forward nothing and of the gradients those of norms and K/V heads.
@pytest.mark.parametrize("control", ("skipped_reduction", "mean_for_sum", "residual_of_every_rank", "rows_of_others",
                                     "row_sums_of_others", "own_vocabulary", "vocabulary_off_by_one"))
@pytest.mark.parametrize("mesh", ("tp=2", "dp=2,tp=2"))
def test_a_mistake_inside_of_a_copy_fails(control, mesh, setting, probe):
    assert_a_mistake_fails(probe, setting, mesh, in_log_probs=True, tp_control=control)


def test_partial_gradients_that_are_not_summed_fail(setting, probe):
    directory, request, expected = setting
    with pytest.raises(Exception, match="has other bits than another"):  # ranks that should hold the same sum
        probe.run(directory, request, mesh="tp=4", tp_control="skipped_partial")
    answer, _ = probe.run(directory, request, mesh="tp=4")
    assert answer["loss"] == pytest.approx(expected.loss, abs=1e-12), "the right ranks pass"
