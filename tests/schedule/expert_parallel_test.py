"""Ranks with experts of their own (ep) against transformers in float64: the tensor-parallel ranks are sets, each with some experts.

Models, meshes, requests, memory policies and placements are drawn, beside every other axis and with sharded parameters; the
ranks are threads with an engine each, and whole tensors are put together from their boxes. STEMMA_SEED draws other cases.
"""

import dataclasses
import os
import random

import pytest
from drawn_steps import (SHAPE, assert_a_mistake_fails, assert_bf16_is_as_near_as_one_ranks,
                         assert_policies_have_the_same_bits, assert_ten_steps_are_one_ranks, assert_the_oracles,
                         assert_twice_the_same_bits, drawn_options, drawn_request, drawn_shape)

from oracle import hf64, models, requests, step
from oracle.probe import ProbeError

_SEED = int(os.environ.get("STEMMA_SEED", "210"))
MESHES = ("tp=2,ep=2", "tp=4,ep=2", "tp=4,ep=4", "dp=2,tp=2,ep=2", "cp=2,tp=2,ep=2", "pp=2,tp=2,ep=2", "dp=2,pp=2,tp=2,ep=2",
          "cp=2,tp=4,ep=4")


def _sizes(mesh):
    return {axis: int(size) for axis, size in (part.split("=") for part in mesh.split(","))}


def drawn(seed):
    """(model, options of the probe, oracle -> request)."""
    rng = random.Random(seed)
    mesh, (heads, kv_heads) = rng.choice(MESHES), rng.choice([(4, 2), (4, 1), (4, 4)])
    sizes = _sizes(mesh)
    pp = sizes.get("pp", 1)
    # Columns that the tp ranks could not share, but those of a set can.
    ffn = sizes["tp"] // sizes["ep"] * rng.choice([5, 7, 12, 24])
    spec = models.Spec("qwen3_moe", hidden=rng.choice([24, 48]), layers=rng.choice([pp, pp + 1, 3]), heads=heads, kv_heads=kv_heads,
                       head_size=rng.choice([8, 16]), ffn=ffn, vocab=rng.choice([96, 97, 101]), tied=rng.random() < 0.5,
                       seed=rng.randrange(2**31), **models.drawn_experts(rng, "qwen3_moe", sizes["ep"]))
    options = drawn_options(rng, mesh, sizes.get("dp", 1), ["REUSE", "REUSE", "REUSE", "DENSE"], seed)
    options |= {"context_seed": rng.choice([0, rng.randrange(1, 2**31)]), "stage_seed": rng.choice([0, rng.randrange(1, 2**31)])}
    if rng.random() < 0.3 and ("dp" in sizes or "cp" in sizes):
        options["shard"] = True
    return spec, options, drawn_request(rng, drawn_shape(rng), seed)


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 40))
def test_ranks_with_experts_of_their_own_have_the_gradients_of_transformers(seed, tmp_path, probe):
    assert_the_oracles(drawn(seed), tmp_path, probe, seed)


def test_the_drawn_cases_reach_everything():
    cases = [drawn(seed)[:2] for seed in range(_SEED, _SEED + 40)]
    assert set(MESHES) == {options["mesh"] for _, options in cases}
    assert {True, False} == {spec.sum_to_one for spec, _ in cases}
    assert {"REUSE", "DENSE"} == {options["schedule"] for _, options in cases}
    assert {True, False} == {options.get("shard", False) for _, options in cases}
    assert any(spec.experts == _sizes(options["mesh"])["ep"] for spec, options in cases), "one expert a rank"
    assert any(spec.per_token == spec.experts for spec, _ in cases), "every row passes every rank"
    assert any(spec.ffn % _sizes(options["mesh"])["tp"] for spec, options in cases), "columns that tp could not cut"
    assert any("split_seed" in options for _, options in cases), "a hot group inside the mesh"


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """Eight experts of which a row passes three; K/V heads that two of four ranks hold."""
    directory = models.make(str(tmp_path_factory.mktemp("ep") / "moe"),
                            models.Spec("qwen3_moe", hidden=48, layers=3, ffn=12, vocab=97, experts=8, per_token=3))
    oracle = hf64.Hf64(directory)
    request = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], masks="none", adam={"max_grad_norm": 0.5})
    return directory, request, step.run(oracle, request)


@pytest.mark.parametrize("mesh", ("tp=2,ep=2", "tp=4,ep=2", "dp=2,tp=2,ep=2"))
def test_the_same_ranks_twice_have_the_same_bits(mesh, setting, probe):
    assert_twice_the_same_bits(probe, setting, mesh)


@pytest.mark.parametrize("mesh", ("tp=2,ep=2", "tp=4,ep=4"))
def test_the_policies_of_one_mesh_have_the_same_bits(mesh, setting, probe):
    assert_policies_have_the_same_bits(probe, setting, mesh)


@pytest.mark.parametrize("mesh", ("tp=2,ep=2", "tp=4,ep=2", "pp=2,tp=2,ep=2"))
def test_ten_steps_of_a_mesh_are_those_of_one_rank(mesh, setting, probe):
    assert_ten_steps_are_one_ranks(probe, setting, mesh)


@pytest.mark.parametrize("mesh", ("tp=2,ep=2", "tp=4,ep=4"))
def test_bf16_is_as_near_to_the_truth_as_on_one_rank(mesh, setting, probe):
    assert_bf16_is_as_near_as_one_ranks(probe, setting, mesh)


@pytest.mark.parametrize("control", ("skipped_reduction", "mean_for_sum", "rows_of_others", "row_sums_of_others"))
@pytest.mark.parametrize("mesh", ("tp=2,ep=2", "tp=4,ep=2"))
def test_a_mistake_between_the_ranks_fails(control, mesh, setting, probe):
    assert_a_mistake_fails(probe, setting, mesh, in_log_probs=True, tp_control=control)


def test_a_routers_partial_gradients_that_are_not_summed_fail(setting, probe):
    directory, request, _ = setting
    with pytest.raises(ProbeError, match="has other bits than another"):
        probe.run(directory, request, mesh="tp=4,ep=4", tp_control="skipped_partial")


@pytest.mark.parametrize("mesh, words", (("tp=4,ep=3", "ep: 3 does not divide tp"), ("tp=2,ep=4", "ep: 4 does not divide tp")))
def test_sets_that_do_not_divide_the_ranks_are_refused(mesh, words, setting, probe):
    directory, request, _ = setting
    with pytest.raises(ProbeError, match=words):
        probe.run(directory, request, mesh=mesh)


def test_a_model_without_experts_is_refused(tmp_path, probe):
    directory = models.make(str(tmp_path / "model"), dataclasses.replace(models.PARITY["qwen3"], vocab=97))
    request = requests.make(hf64.Hf64(directory), SHAPE, requests.LOSSES["vanilla"], masks="none")
    with pytest.raises(ProbeError, match="the model has no experts"):
        probe.run(directory, request, mesh="tp=2,ep=2")
