"""Negative controls: engines with one known mistake. Each must fail the comparison that the right one passes.

The mistakes are strategy objects that the probe injects; no product flag makes them. Where the algebra of split attention says
what stays exact, that is checked too: it shows that the control is the mistake it is named after.
"""

import pytest

from oracle import compare, requests, step

SHAPE = [(33, [9, 5, 12, 7]), (21, [8, 6, 10])]
LARGE = 1e6  # tolerances: a relative error of 1e-6


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def setting(request, model_table):
    oracle = model_table.oracle(request.param)
    made = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], masks="none")
    return model_table.directory(request.param), made, step.run(oracle, made)


def errors_of(setting, probe, control, **options):
    directory, request, expected = setting
    answer, tensors = probe.run(directory, request, control=control, **options)
    return compare.step_errors(answer, tensors, expected)


def last_layer(errors, name):
    return errors.gradients[f"model.layers.1.self_attn.{name}.weight"]


def test_the_right_engine_passes(setting, probe):
    errors = errors_of(setting, probe, "none")
    assert errors.worst <= 1, errors.report()


@pytest.mark.parametrize("control", ["partial_both", "partial_output"])
def test_a_backward_that_drops_the_gradient_of_the_log_sum_exp_fails(setting, probe, control):
    errors = errors_of(setting, probe, control)
    assert errors.log_prob <= 1 and errors.loss <= 1, f"the forward is exact: {errors.report()}"
    assert last_layer(errors, "v_proj") <= 1, "gV needs only p and dO"
    assert last_layer(errors, "k_proj") * compare.GRADIENT > 0.01, f"gK is off by per cents: {errors.report()}"
    assert errors.gradients["model.layers.0.self_attn.v_proj.weight"] > LARGE, "dQ feeds the layer below"


def test_a_backward_with_a_part_s_own_log_sum_exp_fails(setting, probe):
    errors = errors_of(setting, probe, "partial_lse")
    assert errors.log_prob <= 1 and errors.loss <= 1, f"the forward is exact: {errors.report()}"
    assert last_layer(errors, "k_proj") * compare.GRADIENT > 0.01, errors.report()
    assert last_layer(errors, "v_proj") * compare.GRADIENT > 0.01, errors.report()


def test_a_dropped_gk_fails(setting, probe):
    errors = errors_of(setting, probe, "dropped_gk")
    assert errors.log_prob <= 1 and errors.loss <= 1, f"the forward is exact: {errors.report()}"
    assert last_layer(errors, "v_proj") <= 1, "gV is not dropped"
    assert last_layer(errors, "k_proj") * compare.GRADIENT > 0.01, errors.report()


def test_a_restarted_position_fails(setting, probe):
    errors = errors_of(setting, probe, "restarted_position")
    assert errors.log_prob > LARGE and errors.loss > LARGE, errors.report()


def test_one_flipped_bit_of_an_advantage_fails(setting, probe):
    """The comparison itself: the smallest change of an input that float32 can hold is seen."""
    directory, request, expected = setting
    rollout = request["groups"][0]["rollouts"][0]
    kept = rollout["advantage"]
    rollout["advantage"] = kept * (1 + 2.0**-23)
    answer, tensors = probe.run(directory, request)
    rollout["advantage"] = kept
    assert compare.step_errors(answer, tensors, expected).worst > 1e3
