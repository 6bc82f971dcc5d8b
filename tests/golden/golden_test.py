"""The engine against numbers kept in the repository: what a step gives must not move with the oracle's libraries."""

import json
import os

import pytest
from safetensors.torch import load_file

from oracle import compare
from oracle.probe import Probe
from oracle.step import StepResult

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = sorted(name for name in os.listdir(HERE) if os.path.isdir(os.path.join(HERE, name)) and not name.startswith("_"))


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    running = Probe(tmp_path_factory.mktemp("probe"))
    yield running
    running.close()


def load(name):
    folder = os.path.join(HERE, name)
    with open(os.path.join(folder, "request.json")) as file:
        request = json.load(file)
    with open(os.path.join(folder, "about.json")) as file:
        loss = json.load(file)["loss"]
    kept = {"grad": {}, "log_prob": {}}
    for key, value in load_file(os.path.join(folder, "expected.safetensors")).items():
        kind, rest = key.split(".", 1)
        kept[kind][rest] = value
    return os.path.join(folder, "model"), request, StepResult(loss, kept["log_prob"], {}, kept["grad"])


def test_there_are_golden_cases_of_all_families():
    assert {name.split("_")[0] for name in NAMES} == {"llama", "qwen2", "qwen3"}


@pytest.mark.parametrize("schedule", ["REUSE", "DENSE"])
@pytest.mark.parametrize("name", NAMES)
def test_the_step_is_the_one_on_file(name, schedule, probe):
    model, request, expected = load(name)
    answer, tensors = probe.run(model, request, schedule, waves=2)
    errors = compare.step_errors(answer, tensors, expected)
    assert errors.worst <= 1, errors.report()
