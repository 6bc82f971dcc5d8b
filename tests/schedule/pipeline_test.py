"""Stages of a pipeline against transformers in float64: layers, embedding and head on several ranks, hidden states between.

Models, meshes, requests, memory policies, placements and the orders in which stages run their waves are drawn; the ranks are
threads with an engine each. STEMMA_SEED draws other cases.
"""

import dataclasses
import os
import random

import pytest
import torch
from drawn_steps import (LARGE, SHAPE, assert_a_mistake_fails, assert_bf16_is_as_near_as_one_ranks,
                         assert_policies_have_the_same_bits, assert_ten_steps_are_one_ranks, assert_the_oracles,
                         assert_twice_the_same_bits, drawn_options, drawn_request, drawn_shape)

from oracle import compare, hf64, models, requests, step
from oracle.probe import ProbeError

_SEED = int(os.environ.get("STEMMA_SEED", "80"))
MESHES = ("pp=2", "pp=3", "pp=2,tp=2", "pp=2,cp=2", "dp=2,pp=2")


def drawn(seed):
    """(model, options of the probe, oracle -> request)."""
    rng = random.Random(seed)
    family, (heads, kv_heads) = rng.choice(["llama", "qwen2", "qwen3", "qwen3_moe", "mistral"]), rng.choice([(4, 2), (4, 1), (4, 4), (6, 3)])
    pp = rng.choice([2, 2, 3])
    spec = models.Spec(family, hidden=8 * heads if family == "qwen2" else rng.choice([24, 48]), layers=rng.choice([pp, pp + 1, 5]),
                       heads=heads, kv_heads=kv_heads, head_size=8 if family == "qwen2" else rng.choice([8, 16]),
                       ffn=12 * rng.randint(2, 5), vocab=rng.choice([96, 97, 101]), tied=rng.random() < 0.5,
                       seed=rng.randrange(2**31), **models.drawn_experts(rng, family))
    shape = drawn_shape(rng)
    dp, cp, tp = rng.choice([1, 1, 2]), rng.choice([1, 1, 2]), rng.choice([1, 1, 2 if heads % 4 == 0 else 3])
    options = drawn_options(rng, f"dp={dp},pp={pp},cp={cp},tp={tp}", dp, ["REUSE", "REUSE", "REUSE", "DENSE"], seed)
    options["context_seed"] = rng.choice([0, rng.randrange(1, 2**31)])
    options["context_cut"] = options["context_seed"] % 2 == 1
    options["stage_seed"] = rng.choice([0, *[rng.randrange(1, 2**31)] * 3])  # 0: backwards as soon as they can
    return spec, options, drawn_request(rng, shape, seed)


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 40))
def test_stages_have_the_gradients_of_transformers(seed, tmp_path, probe):
    assert_the_oracles(drawn(seed), tmp_path, probe, seed)


def test_the_drawn_cases_reach_everything():
    cases = [drawn(seed)[:2] for seed in range(_SEED, _SEED + 40)]
    sizes = [dict(axis.split("=") for axis in options["mesh"].split(",")) for _, options in cases]
    assert {"2", "3"} == {size["pp"] for size in sizes}
    for axis in ("dp", "cp", "tp"):
        assert any(size[axis] != "1" for size in sizes), axis
    assert any(all(size[axis] != "1" for axis in ("cp", "tp")) for size in sizes), "three axes within a copy"
    assert any(spec.layers == int(size["pp"]) for size, (spec, _) in zip(sizes, cases)), "stages of one layer"
    assert {True, False} == {spec.tied for spec, _ in cases}
    assert {"REUSE", "DENSE"} == {options["schedule"] for _, options in cases}
    assert any(options.get("prefix_block_rows") and options["prefix_policy"] == "S5" for _, options in cases)
    shared = [size for size, (_, options) in zip(sizes, cases) if "split_seed" in options]
    assert shared and {"2", "3"} == {size["pp"] for size in shared}, "groups that copies share"
    assert any(size["cp"] != "1" for size in shared)


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    directory = models.make(str(tmp_path_factory.mktemp("pp") / "qwen3"),
                            dataclasses.replace(models.PARITY["qwen3"], vocab=97, layers=4, tied=True))
    oracle = hf64.Hf64(directory)
    request = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], masks="none", adam={"max_grad_norm": 0.5})
    return directory, request, step.run(oracle, request)


@pytest.mark.parametrize("seed", (0, 3))
@pytest.mark.parametrize("mesh", MESHES)
def test_the_same_ranks_twice_have_the_same_bits(mesh, seed, setting, probe):
    assert_twice_the_same_bits(probe, setting, mesh, stage_seed=seed)


@pytest.mark.parametrize("mesh", MESHES)
def test_the_order_of_the_stages_does_not_change_a_bit(mesh, setting, probe):
    """Forwards and backwards each run in one order, whatever the interleaving, so sums do too."""
    directory, request, _ = setting
    first, *others = (probe.run(directory, request, mesh=mesh, dtype="fp32", waves=1, clusters="per_group", stage_seed=seed)[1]
                      for seed in (0, 1, 2))
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("mesh", MESHES)
def test_the_policies_of_one_mesh_have_the_same_bits(mesh, setting, probe):
    # A policy changes the seconds by which groups are placed, and waves and clusters cut for stages, so all of it is
    # given: a wave has all suffixes of its group.
    assert_policies_have_the_same_bits(probe, setting, mesh, stage_seed=7, placement_seed=4, waves=64, clusters="per_group")


@pytest.mark.parametrize("mesh", MESHES)
def test_ten_steps_of_a_mesh_are_those_of_one_rank(mesh, setting, probe):
    assert_ten_steps_are_one_ranks(probe, setting, mesh, stage_seed=11)


@pytest.mark.parametrize("mesh", ("pp=2", "pp=4"))
def test_bf16_is_as_near_to_the_truth_as_on_one_rank(mesh, setting, probe):
    assert_bf16_is_as_near_as_one_ranks(probe, setting, mesh, stage_seed=5)


@pytest.mark.parametrize("control", ("hidden_of_others", "hidden_gradients_dropped"))
@pytest.mark.parametrize("mesh", MESHES)
def test_a_mistake_between_the_stages_fails(control, mesh, setting, probe):
    assert_a_mistake_fails(probe, setting, mesh, in_log_probs=control == "hidden_of_others", pp_control=control)


@pytest.mark.parametrize("mesh", MESHES)
def test_a_tied_embedding_that_is_not_summed_over_the_stages_fails(mesh, setting, probe):
    """The first and the last stage hold it, and would step it apart."""
    directory, request, _ = setting
    with pytest.raises(ProbeError, match="model.embed_tokens.weight: rank .* has other bits"):
        probe.run(directory, request, mesh=mesh, pp_control="tied_gradients_apart")


def test_data_ranks_of_a_stage_that_do_not_sum_their_gradients_fail(setting, probe):
    directory, request, expected = setting
    answer, tensors = probe.run(directory, request, mesh="dp=2,pp=2", rank_control="skipped_reduction")
    errors = compare.step_errors(answer, tensors, expected)
    assert max(errors.gradients.values()) > LARGE, errors.report()
