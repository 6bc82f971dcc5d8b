"""Hostile model files: a real process refuses each at start with exit code 2, naming the file and what in it is wrong."""

import os
import re
import shutil
import subprocess

import pytest

import model_files
from server import BUILD, MODEL

# Far above what a refusal needs, far below what the sizes that these files announce would take.
PEAK_BYTES = 512 << 20


def copy_of_the_model(tmp_path):
    path = tmp_path / "model"
    shutil.copytree(MODEL, path)
    for file in path.iterdir():
        file.chmod(0o644)
    return path


def start(tmp_path, argv):
    """(exit code, what it said, peak bytes)"""
    said = tmp_path / "said"
    with open(said, "wb") as stderr:
        process = subprocess.Popen([str(BUILD / "bin" / argv[0]), *argv[1:]], stdout=subprocess.DEVNULL, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, said.read_text(), usage.ru_maxrss * 1024


def check_refused(tmp_path, argv, file, words):
    code, text, peak = start(tmp_path, argv)
    assert code == 2, f"exit {code}: {text}"
    text = text.replace(str(tmp_path), "")  # its name holds the case's
    assert re.search(re.escape(f"/model/{file}") + r"(?!\.index)", text), text
    for word in words:
        assert word in text, f"`{word}` is not in: {text}"
    assert len(text) < 2000 and "Check failure" not in text, text
    assert peak < PEAK_BYTES


@pytest.mark.parametrize("spoil, words, file", [case[1:] for case in model_files.CASES],
                         ids=[case[0] for case in model_files.CASES])
def test_the_server_refuses(tmp_path, spoil, words, file):
    model = copy_of_the_model(tmp_path)
    spoil(model)
    check_refused(tmp_path, ["stemma-server", "--model", str(model), "--data", str(tmp_path / "data")], file, words)


@pytest.mark.parametrize("name", ["a header length above the limit", "tensors that overlap", "a tensor twice",
                                  "a shape whose product overflows", "truncated data",
                                  "an index that names '../model.safetensors'"])
def test_stemma_local_passes_the_refusal_on(tmp_path, name):
    [(spoil, words, file)] = [case[1:] for case in model_files.CASES if case[0] == name]
    model = copy_of_the_model(tmp_path)
    spoil(model)
    check_refused(tmp_path, ["stemma", "local", "--model", str(model), "--data", str(tmp_path / "data")], file, words)


@pytest.mark.parametrize("prepare", [lambda directory: None, model_files.shard, model_files.padded],
                         ids=["single", "sharded", "padded"])
def test_control_the_files_that_the_cases_spoil_are_accepted(tmp_path, prepare):
    model = copy_of_the_model(tmp_path)
    prepare(model)
    assert start(tmp_path, ["stemma-server", "--model", str(model), "--check-config"])[:2] == (0, "")
