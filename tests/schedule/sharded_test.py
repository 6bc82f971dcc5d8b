"""Sharded parameters (ZeRO-3) against transformers in float64: each rank keeps a part of every layer, gathers it where it
runs, and hands its gradients to their owners.

Models, meshes, requests, memory policies and placements are drawn; the ranks are threads with an engine each. STEMMA_SEED
draws other cases.
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

_SEED = int(os.environ.get("STEMMA_SEED", "130"))
MESHES = ("dp=2", "dp=3", "cp=2", "dp=2,cp=2", "dp=2,tp=2", "dp=2,pp=2", "dp=2,pp=2,tp=2", "dp=2,pp=2,cp=2")
REDUCTIONS = ("SWEEP", "STEP")  # when gradients are handed to their owners


def drawn(seed):
    """(model, options of the probe, oracle -> request)."""
    rng = random.Random(seed)
    family, (heads, kv_heads) = rng.choice(["llama", "qwen2", "qwen3", "qwen3_moe", "mistral"]), rng.choice([(4, 2), (4, 1), (4, 4)])
    sizes = dict(axis.split("=") for axis in rng.choice(MESHES).split(","))
    pp = int(sizes.get("pp", "1"))
    spec = models.Spec(family, hidden=8 * heads if family == "qwen2" else rng.choice([24, 48]), layers=rng.choice([pp, pp + 1, 4, 5]),
                       heads=heads, kv_heads=kv_heads, head_size=8 if family == "qwen2" else rng.choice([8, 16]),
                       ffn=12 * rng.randint(2, 5), vocab=rng.choice([96, 97, 101]), tied=rng.random() < 0.5,
                       seed=rng.randrange(2**31), **models.drawn_experts(rng, family))
    shape = drawn_shape(rng)
    mesh = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    options = drawn_options(rng, mesh, int(sizes.get("dp", "1")), ["REUSE", "REUSE", "REUSE", "DENSE"], seed)
    options |= {"shard": True, "context_seed": rng.choice([0, rng.randrange(1, 2**31)]),
                "stage_seed": rng.choice([0, rng.randrange(1, 2**31)]), "clusters": rng.choice(["one", "per_group"])}
    request = drawn_request(rng, shape, seed)
    options["reduce"] = rng.choice(REDUCTIONS)
    options["context_cut"] = options["context_seed"] % 2 == 1
    return spec, options, request


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 48))
def test_sharded_parameters_have_the_gradients_of_transformers(seed, tmp_path, probe):
    assert_the_oracles(drawn(seed), tmp_path, probe, seed)


def test_the_drawn_cases_reach_everything():
    cases = [drawn(seed)[:2] for seed in range(_SEED, _SEED + 48)]
    assert set(MESHES) == {options["mesh"] for _, options in cases}
    assert {True, False} == {spec.tied for spec, _ in cases}
    assert {"REUSE", "DENSE"} == {options["schedule"] for _, options in cases}
    for axis in ("dp=2", "cp=2", "pp=2", "tp=2"):
        assert set(REDUCTIONS) == {options["reduce"] for _, options in cases if axis in options["mesh"]}, axis
    for pp in (False, True):
        assert any("split_seed" in options and ("pp=2" in options["mesh"]) == pp for _, options in cases), "a group that copies share"
    assert any(options.get("prefix_block_rows") and options["prefix_policy"] == "S5" for _, options in cases)
    assert any(spec.layers == 1 or spec.layers == int(dict(a.split("=") for a in options["mesh"].split(",")).get("pp", "1"))
               for spec, options in cases), "a stage of one layer"


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    directory = models.make(str(tmp_path_factory.mktemp("sharded") / "qwen3"),
                            dataclasses.replace(models.PARITY["qwen3"], vocab=97, layers=4, tied=True))
    oracle = hf64.Hf64(directory)
    request = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], masks="none", adam={"max_grad_norm": 0.5})
    return directory, request, step.run(oracle, request)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("mesh", MESHES)
def test_the_same_ranks_twice_have_the_same_bits(mesh, reduce, setting, probe):
    assert_twice_the_same_bits(probe, setting, mesh, shard=True, reduce=reduce)


@pytest.mark.parametrize("mesh", MESHES)
def test_the_policies_of_one_mesh_have_the_same_bits(mesh, setting, probe):
    assert_policies_have_the_same_bits(probe, setting, mesh, shard=True, stage_seed=7, placement_seed=4, waves=64,
                                       clusters="per_group")


@pytest.mark.parametrize("mesh", MESHES)
def test_ten_steps_of_a_mesh_are_those_of_one_rank(mesh, setting, probe):
    assert_ten_steps_are_one_ranks(probe, setting, mesh, shard=True)


@pytest.mark.parametrize("mesh", ("dp=2", "dp=4"))
def test_bf16_is_as_near_to_the_truth_as_on_one_rank(mesh, setting, probe):
    assert_bf16_is_as_near_as_one_ranks(probe, setting, mesh, shard=True)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("control", ("skipped_reduction", "mean_for_sum", "swapped_weights"))
@pytest.mark.parametrize("mesh", MESHES)
def test_a_mistake_between_the_owners_fails(control, mesh, reduce, setting, probe):
    """Gradients that are not summed or averaged; layers whose parts stand in the places of other ranks'."""
    assert_a_mistake_fails(probe, setting, mesh, in_log_probs=control == "swapped_weights", rank_control=control, shard=True,
                           reduce=reduce)


@pytest.mark.parametrize("mesh", ("dp=2,tp=2", "dp=2,pp=2"))
def test_partial_gradients_that_are_not_summed_fail(mesh, setting, probe):
    """Norm weights have parts of theirs on the tensor-parallel ranks, a tied embedding on the first and the last stage."""
    directory, request, _ = setting
    control = {"tp_control": "skipped_partial"} if "tp" in mesh else {"pp_control": "tied_gradients_apart"}
    with pytest.raises(ProbeError, match="rank .* has other bits"):
        probe.run(directory, request, mesh=mesh, shard=True, **control)
