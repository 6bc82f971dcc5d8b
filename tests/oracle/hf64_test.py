"""The oracle is checked before anything is checked against it."""

import pytest
import torch

from oracle import hf64, models, plain

PROMPT = [5, 17, 3, 60, 41, 8, 33, 29, 77, 12, 90, 51, 6, 44, 18]
RESPONSE = [9, 71, 2, 64, 13, 38, 85]
TOLERANCE = 1e-13  # two fp64 evaluations of a two-layer model; measured at most 1.1e-14


def loss_and_gradients(model):
    log_prob, entropy = hf64.log_probs_and_entropy(model.logits(PROMPT, RESPONSE), RESPONSE, 0.7)
    weights = torch.linspace(-1, 1, len(RESPONSE), dtype=torch.float64)
    (log_prob @ weights + 0.1 * entropy.sum()).backward()
    return log_prob.detach(), {name: parameter.grad for name, parameter in model.parameters().items()}


def worst_gradient(model, reference):
    """Largest error of any parameter's gradient, relative to that parameter's largest entry."""
    assert model.keys() == reference.keys()
    return max(((model[name] - reference[name]).abs().max() / reference[name].abs().max()).item() for name in reference)


@pytest.fixture(params=sorted(models.PARITY))
def directory(request, tmp_path):
    return models.make(str(tmp_path), models.PARITY[request.param])


def test_patched_transformers_agrees_with_the_plain_formulas(directory):
    log_prob, gradients = loss_and_gradients(hf64.Hf64(directory))
    expected, expected_gradients = loss_and_gradients(plain.PlainModel(directory))
    assert (log_prob - expected).abs().max() < TOLERANCE
    assert worst_gradient(gradients, expected_gradients) < TOLERANCE


def test_control_transformers_as_it_is_does_not(directory):
    log_prob, gradients = loss_and_gradients(hf64.Hf64(directory, patched=False))
    expected, expected_gradients = loss_and_gradients(plain.PlainModel(directory))
    assert (log_prob - expected).abs().max() > 1e4 * TOLERANCE
    assert worst_gradient(gradients, expected_gradients) > 1e4 * TOLERANCE


def test_every_band_of_the_llama3_scaling_is_reached():
    scaled = hf64._inverse_frequencies(models._config(models.PARITY["llama_scaled"]))
    raw = 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    ratio = raw / scaled
    assert (ratio == 1).any() and (ratio == 8).any() and ((ratio > 1.01) & (ratio < 7.99)).any()
