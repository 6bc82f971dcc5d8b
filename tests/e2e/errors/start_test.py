"""What the server refuses at start: exit 2, naming the file and the field; every problem at once."""

import json
import os
import shutil
import struct

import pytest

from server import MODEL, start


def model_copy(tmp_path):
    path = tmp_path / "model"
    shutil.copytree(MODEL, path)
    for file in path.iterdir():
        file.chmod(0o644)
    return path


def test_a_good_configuration_is_checked_and_says_ok(tmp_path):
    assert start(tmp_path, "--model", str(MODEL), "--check-config") == (0, "")
    assert not (tmp_path / "data").exists(), "a check leaves nothing behind"


def test_three_mistakes_in_run_yaml_are_three_problems(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {MODEL}\ndtype: fp8\nschedule: sometimes\nlimits:\n  grops: 3\n")
    code, text = start(tmp_path, "--config", str(config), "--check-config")
    assert code == 2
    for word in ("run.yaml", "dtype", "schedule", "grops"):
        assert word in text, text


def test_a_mesh_overrides_run_yaml_and_is_judged_with_all_else(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(f"model: {MODEL}\nmesh:\n  dp: 5000\n")
    code, text = start(tmp_path, "--config", str(config), "--check-config")
    assert code == 2 and "mesh.dp" in text and "5000" in text, text
    assert start(tmp_path, "--config", str(config), "--mesh", "dp=2", "--check-config") == (0, "")
    code, text = start(tmp_path, "--config", str(config), "--mesh", "ep=2", "--dtype", "fp8", "--check-config")
    assert code == 2, text
    for word in ('--mesh: "ep=2" names no axis', "fp8"):
        assert word in text, text


def test_a_run_yaml_that_is_missing_is_named(tmp_path):
    code, text = start(tmp_path, "--config", str(tmp_path / "none.yaml"), "--model", str(MODEL))
    assert code == 2 and "none.yaml" in text


def test_configuration_and_model_directory_are_reported_together(tmp_path):
    code, text = start(tmp_path, "--model", str(tmp_path / "nowhere"), "--dtype", "fp8")
    assert code == 2 and "nowhere" in text and "fp8" in text, text


def no_model(path):
    shutil.rmtree(path)


def no_config(path):
    (path / "config.json").unlink()


def truncated(path):
    weights = path / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 8)


def unknown_family(path):
    edit_config(path, model_type="mamba")


def sliding_window(path):
    edit_config(path, hidden_act="gelu")


def huge_header(path):
    weights = path / "model.safetensors"
    weights.write_bytes(struct.pack("<Q", 1 << 40) + weights.read_bytes()[8:])


def header_is_no_json(path):
    weights = path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[8:9] = b"["
    weights.write_bytes(data)


def edit_config(path, **fields):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **fields}))


@pytest.mark.parametrize("spoil, words", [
    (no_model, ["model"]), (no_config, ["config.json"]), (truncated, ["model.safetensors"]),
    (unknown_family, ["config.json", "mamba"]), (sliding_window, ["config.json", "gelu"]),
    (huge_header, ["model.safetensors"]), (header_is_no_json, ["model.safetensors"]),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_model_directory_that_cannot_run_is_named(tmp_path, spoil, words):
    path = model_copy(tmp_path)
    spoil(path)
    code, text = start(tmp_path, "--model", str(path))
    assert code == 2
    for word in words:
        assert word in text, text


def test_plaintext_beyond_loopback_needs_to_be_asked_for(tmp_path):
    code, text = start(tmp_path, "--model", str(MODEL), "--listen", "0.0.0.0:0")
    assert code == 2 and "--insecure" in text


def test_an_unknown_flag_is_a_usage_error(tmp_path):
    assert start(tmp_path, "--modle", str(MODEL))[0] == 2


def test_a_port_that_is_taken_is_a_fault(tmp_path):
    import socket
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = start(tmp_path, "--model", str(MODEL), "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 1 and "cannot listen" in text
