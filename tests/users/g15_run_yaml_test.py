"""docs/run.yaml names every key of the run configuration, and its values are the program's defaults."""

import pathlib
import re
import subprocess

import pytest
import yaml

from e2e.errors.server import BUILD, MODEL, Cluster
from stemma import _proto

FILE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "run.yaml"
TEXT = FILE.read_text(encoding="utf-8").replace("/models/Qwen3-8B", str(MODEL))
ACTIVE = yaml.safe_load(TEXT)
FORCED = dict(re.findall(r"(?m)^# (\w+): (\w+)  +#", TEXT))  # behind `#`: the planner chooses unless it is set
NESTED = {"limits", "mesh", "checkpoints"}
ZERO_MEANS_CHOSEN = ("threads", "head_chunk_tokens", "memory_budget_bytes", "host_memory_bytes")


@pytest.fixture(scope="module")
def defaults():
    """The configuration in force where run.yaml names only the model."""
    with Cluster(config=f"model: {MODEL}\n") as cluster:
        yield cluster.stub.GetServerInfo(_proto.GetServerInfoRequest()).config


def fields(message):
    return {field.name for field in message.DESCRIPTOR.fields}


def test_every_key_is_in_the_file(defaults):
    assert set(ACTIVE) | set(FORCED) == fields(defaults)
    for key in NESTED:
        assert set(ACTIVE[key]) == fields(getattr(defaults, key)), key
    assert not set(ACTIVE) & set(FORCED)


def test_every_line_has_an_explanation():
    for line in TEXT.split("\n"):
        if re.match(r"(# )?\s*\w+:\s", line) and "#" not in line.lstrip("# "):
            assert line.rstrip(":") in NESTED or line.startswith("# "), line


def test_the_values_are_the_defaults(defaults):
    for nested in NESTED:
        for key, value in ACTIVE[nested].items():
            assert getattr(getattr(defaults, nested), key) == value, f"{nested}.{key}"
    for key, value in ACTIVE.items():
        if key in NESTED or key in ZERO_MEANS_CHOSEN:
            continue
        field = defaults.DESCRIPTOR.fields_by_name[key]
        default = getattr(defaults, key)
        if field.enum_type is not None:
            names = {number: value.name.lower() for number, value in field.enum_type.values_by_number.items()}
            default = names[default].removeprefix(names[0].removesuffix("unspecified"))
        assert default == value, key


def check(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return subprocess.run([BUILD / "bin/stemma-server", "--config", path, "--check-config"], capture_output=True, text=True)


def test_the_file_as_it_is_can_be_run(tmp_path):
    done = check(tmp_path, TEXT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("key", sorted(FORCED))
def test_each_choice_can_be_forced(tmp_path, key):
    done = check(tmp_path, TEXT.replace(f"# {key}:", f"{key}:"))
    assert done.returncode == 0, done.stderr


def test_a_value_that_is_not_the_default_would_be_seen(tmp_path):
    done = check(tmp_path, TEXT.replace("dtype: fp32", "dtype: fp31"))
    assert done.returncode == 2 and "fp31" in done.stderr and "dtype" in done.stderr
