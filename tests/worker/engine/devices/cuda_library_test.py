"""What the CUDA library shows to the process that loads it: one function, and no second copy of what must be there once."""

import os
import pathlib
import subprocess

_LIBRARY = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "bin" / "libstemma_cuda.so"

# Registered by their first use in the process: a second copy would end it.
_ONCE = ["descriptor_table_", "google::protobuf::"]


def _symbols(*options):
    lines = subprocess.run(["nm", "-C", *options, str(_LIBRARY)], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split(maxsplit=2)[-1] for line in lines]


def _copied(symbols):
    return [symbol for symbol in symbols if any(word in symbol for word in _ONCE)]


def test_one_function_is_exported():
    lines = subprocess.run(["nm", "-D", "--defined-only", str(_LIBRARY)], check=True, capture_output=True, text=True).stdout
    functions = [line.split()[-1] for line in lines.splitlines() if line.split()[-2] == "T"]
    assert functions == ["StemmaOpenDevice"]


def test_nothing_is_there_a_second_time_that_may_be_there_once():
    assert _copied(_symbols("--defined-only")) == []


def test_a_copied_descriptor_is_seen():
    assert _copied(["stemma::worker::A", "descriptor_table_stemma_2fv1"]) == ["descriptor_table_stemma_2fv1"]
