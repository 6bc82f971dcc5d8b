"""E3: what stands under a masked token is never read: NaN, infinities and any other number give the same update as zeros,
to the bit, in every loss mode and every array."""

import itertools
import math
import random

import pytest
from e2e.errors.good_request import Request
from e2e.errors.server import Cluster
from e2e.file_digest import weights_digest
from stemma import _proto

ARRAYS = ("old_log_probs", "rollout_log_probs", "ref_log_prob", "token_advantages", "rollout_is_weights", "loss_weights")
GARBAGE = (math.nan, math.inf, -math.inf, 3.4e38, -7.5)
MASK = [1, 0, 1, 0, 0, 1]
TOKENS = [5, 6, 7, 8, 9, 10]

# mode: (its own knobs, whether it reads old log-probs, whether it reads loss_weights in place of advantages)
CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}
MODES = {"vanilla": (dict(CLIP, clip_ratio_c=3.0), True, False), "gspo": (CLIP, True, False), "cispo": (CLIP, True, False),
         "importance_sampling": ({}, True, False), "cross_entropy": ({}, False, True), "gpg": ({}, False, False)}


def arrays_of(mode, old):
    _, reads_old, reads_weights = MODES[mode]
    names = ["ref_log_prob"]
    if reads_old:
        names.append("old_log_probs" if old == "CLIENT" else "rollout_log_probs")
    return names + (["loss_weights"] if reads_weights else ["token_advantages", "rollout_is_weights"])


def request_of(mode, old, under_mask):
    """The same numbers each time but for those under the mask, which `under_mask` gives."""
    knobs, reads_old, _ = MODES[mode]
    draw = random.Random(f"{mode} {old}")
    request = Request(("g0", "g1"))
    request.header["loss"] = {"loss_mode": mode, "loss_agg_mode": "token-mean", "temperature": 0.9, "kl_loss_coef": 0.1,
                              "kl_loss_type": "low_var_kl", "entropy_coeff": 0.01, **knobs}
    request.header["old"] = {"from": old}
    if not reads_old:
        del request.header["old"]
    for group, i in itertools.product(request.groups, range(2)):
        rollout = {"rollout_id": f"{group['uid']}/{i}", "response_tokens": TOKENS, "response_mask": MASK}
        for name in arrays_of(mode, old):
            numbers = [draw.uniform(-3, -1) if "log_prob" in name else draw.uniform(0.5, 2) for _ in MASK]
            rollout[name] = [number if bit else under_mask(name, t) for t, (number, bit) in enumerate(zip(numbers, MASK))]
        group["rollouts"][i] = rollout
    return request


def exported(cluster, name):
    cluster.stub.ExportWeights(_proto.ExportWeightsRequest(name=name), timeout=60)
    return weights_digest(cluster.root / "data/exports" / name)


CASES = [(mode, old) for mode in MODES for old in (("CLIENT", "ROLLOUT") if MODES[mode][1] else ("",))]


def test_every_array_of_a_request_is_covered():
    assert {name for mode, old in CASES for name in arrays_of(mode, old)} == set(ARRAYS)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_numbers_under_a_mask_change_no_bit_of_the_update(dtype):
    with Cluster(flags=("--dtype", dtype)) as zeros, Cluster(flags=("--dtype", dtype)) as garbage:
        last = exported(zeros, "start")
        for mode, old in CASES:
            name = f"{mode}-{old}".lower().strip("-")
            plain = request_of(mode, old, lambda array, t: 0.0).send(zeros.stub)
            other = request_of(mode, old, lambda array, t: GARBAGE[(t + len(array)) % len(GARBAGE)]).send(garbage.stub)
            weights = exported(zeros, name)
            assert weights != last, f"{name}: the step changed nothing, so the comparison says nothing"
            assert exported(garbage, name) == weights, name
            for metric in ("actor/loss", "actor/grad_norm"):
                assert plain.result.steps[0].metrics[metric] == other.result.steps[0].metrics[metric], (name, metric)
            last = weights
        unmasked = request_of("gpg", "", lambda array, t: 1.0)
        unmasked.groups[0]["rollouts"][0]["token_advantages"][0] += 1  # control: what is not masked is read
        unmasked.send(garbage.stub)
        request_of("gpg", "", lambda array, t: 1.0).send(zeros.stub)
        assert exported(garbage, "control") != exported(zeros, "control")
