"""The engine's step against transformers in float64: log-probs, loss and every parameter's gradient, whatever the plan."""

import collections
import dataclasses
import os

import pytest

from cases import CASES
from oracle import compare, models, requests, step

_ON_FAKE_DEVICE = os.environ.get("STEMMA_TEST_BACKEND") == "fake"


def _thinned(cases):
    """Every third case: with one of two or three plans, with a third of many. The next such case has others."""
    turn, result = collections.Counter(), []
    for case in cases[::3]:
        plans = len(case.variants)
        begin = turn[plans]
        turn[plans] += 1
        step = 3 if plans > 5 else 1 if plans > 3 else plans
        chosen = case.variants[begin % step::step]
        result.append(dataclasses.replace(case, variants=chosen))
    return result


# On the fake device each op closes the device's memory again, which takes ten times as long.
_CASES = _thinned(CASES) if _ON_FAKE_DEVICE else CASES


def mesh_for(model):
    """Three K/V heads cannot be cut in two: that model is cut in three where the others are."""
    cut_in_two = os.environ.get("STEMMA_TEST_MESH") == "tp=2"
    return {"mesh": "tp=3"} if cut_in_two and models.PARITY[model].kv_heads == 3 else {}


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_parity_with_transformers(case, model_table, probe):
    oracle = model_table.oracle(case.model)
    request = case.build(oracle)
    assert requests.kink_margin(request, step.log_probs(oracle, request)) > 1e-3, "a kink would make the comparison moot"
    expected = step.run(oracle, request)
    failures = []
    for variant in case.variants:
        answer, tensors = probe.run(model_table.directory(case.model), request, variant.schedule, variant.layout,
                                    variant.waves, variant.head_chunk, clusters=variant.clusters, **variant.memory(),
                                    **mesh_for(case.model))
        errors = compare.step_errors(answer, tensors, expected)
        assert answer["plan"]["rollouts_run"] == len(expected.log_probs), variant
        if not errors.worst <= 1:
            failures.append(f"{variant}: {errors.report()}")
    assert not failures, "\n".join(failures)


def test_every_plan_runs_whatever_is_left_out():
    assert {str(variant) for case in _thinned(CASES) for variant in case.variants} == \
        {str(variant) for case in CASES for variant in case.variants}
