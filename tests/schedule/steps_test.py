"""Several optimizer steps: the engine's weights against torch's AdamW on the oracle's gradients, and reuse against dense.

Weights are compared in units of lr · steps: AdamW divides the gradient by its own size, so a first step turns a relative
gradient error of 1e-16 / eps into that share of lr. With eps = 1e-8 that is 1e-8; 1e-6 leaves room for hundred roundings.
"""

import copy

import pytest

from oracle import hf64, requests, step, training

WEIGHT = 1e-6  # of lr · steps

SHAPE = [(9, [4, 1, 6]), (1, [2, 5]), (14, [3, 3, 0]), (6, [7])]


def adam_cases():
    yield "one step", {}, {}, {}
    yield "clipped by norm", {"max_grad_norm": 0.05}, {}, {}
    yield "not clipped below the norm", {"max_grad_norm": 1e6}, {}, {}
    yield "decay of matrices only", {"weight_decay_scope": "MATRICES", "weight_decay": 0.5}, {}, {}
    yield "no decay", {"weight_decay": 0.0}, {}, {}
    yield "other betas and eps", {"beta1": 0.75, "beta2": 0.9375, "eps": 1e-6}, {"ppo_epochs": 3}, {}
    yield "mini-batches", {"max_grad_norm": 1.0}, {"ppo_mini_batch_size": 2}, {}
    yield "mini-batches that do not divide", {}, {"ppo_mini_batch_size": 3, "ppo_epochs": 2}, {}
    yield "epochs with old and ref of the entry weights", {}, {"ppo_epochs": 3, "ppo_mini_batch_size": 2}, {
        "old_from": "WEIGHTS", "kl": "k3", "ref_from": "WEIGHTS"}
    yield "per prompt means in mini-batches", {}, {"ppo_mini_batch_size": 1}, {"loss_agg_mode": "prompt-mean"}


def build(oracle, adam, header, options):
    request = requests.make(oracle, SHAPE, requests.LOSSES["vanilla"], adam=adam, masks="none", **options)
    return requests.with_fields(request, **header)


def worst(tensors, expected, request):
    """(difference in units of lr · steps, parameter)"""
    unit = request["header"]["adam"]["learning_rate"] * len(step.mini_batches(request))
    assert {name.removeprefix("weight.") for name in tensors if name.startswith("weight.")} == set(expected)
    return max(((tensors[f"weight.{name}"] - value).abs().max().item() / unit, name) for name, value in expected.items())


@pytest.mark.parametrize("model", ["llama_tied", "qwen2", "qwen3", "qwen3_moe"])
@pytest.mark.parametrize("name,adam,header,options", list(adam_cases()), ids=lambda value: value if isinstance(value, str) else "")
def test_weights_after_the_steps_are_those_of_torch_adamw(name, adam, header, options, model, model_table, probe):
    oracle = hf64.Hf64(model_table.directory(model))
    request = build(oracle, adam, header, options)
    expected, _ = training.train(oracle, request)
    for schedule in ("REUSE", "DENSE"):
        _, tensors = probe.run(model_table.directory(model), request, schedule, apply=True)
        error, parameter = worst(tensors, expected, request)
        assert error < WEIGHT, f"{schedule}: {parameter} is off by {error:.3g} · lr · steps"


def test_control_decay_of_the_wrong_parameters_shows(model_table, probe):
    oracle = hf64.Hf64(model_table.directory("llama_tied"))
    request = build(oracle, {"weight_decay_scope": "MATRICES", "weight_decay": 0.5}, {}, {})
    expected, _ = training.train(oracle, request)
    wrong = copy.deepcopy(request)
    wrong["header"]["adam"]["weight_decay_scope"] = "ALL"
    _, tensors = probe.run(model_table.directory("llama_tied"), wrong, apply=True)
    error, parameter = worst(tensors, expected, request)
    assert error > 1e3 * WEIGHT and parameter.endswith("norm.weight")


def test_control_an_unclipped_step_shows(model_table, probe):
    """AdamW hides a constant factor from its first step; two mini-batches of different norms show it."""
    oracle = hf64.Hf64(model_table.directory("llama_tied"))
    request = build(oracle, {"max_grad_norm": 0.05}, {"ppo_mini_batch_size": 2}, {})
    expected, _ = training.train(oracle, request)
    wrong = copy.deepcopy(request)
    wrong["header"]["adam"]["max_grad_norm"] = 0.0
    _, tensors = probe.run(model_table.directory("llama_tied"), wrong, apply=True)
    assert worst(tensors, expected, request)[0] > 1e3 * WEIGHT


def twenty_steps(oracle):
    shape = [(13 + 2 * g, [4 + g, 1, 7, 3]) for g in range(10)]
    request = requests.make(oracle, shape, requests.LOSSES["vanilla"], old_from="WEIGHTS",
                            adam={"eps": 1e-8, "max_grad_norm": 1.0})
    return requests.with_fields(request, ppo_mini_batch_size=2, ppo_epochs=4)


@pytest.mark.parametrize("model", ["llama", "qwen2_tied_bf16", "qwen3", "qwen3_moe"])
def test_reuse_and_dense_end_twenty_steps_with_the_same_weights(model, model_table, probe):
    oracle = hf64.Hf64(model_table.directory(model))
    request = twenty_steps(oracle)
    assert len(step.mini_batches(request)) == 20
    start = {name: p.detach().clone() for name, p in oracle.parameters().items()}
    _, reuse = probe.run(model_table.directory(model), request, "REUSE", apply=True)
    _, dense = probe.run(model_table.directory(model), request, "DENSE", apply=True)
    dense = {name.removeprefix("weight."): value for name, value in dense.items() if name.startswith("weight.")}
    error, parameter = worst(reuse, dense, request)
    assert error < WEIGHT, f"{parameter} is off by {error:.3g} · lr · steps"
    moved = worst({f"weight.{name}": value for name, value in dense.items()}, start, request)[0]
    assert moved > 0.1, "the weights must have moved for this to say anything"
