"""`cmake --install` makes a tree that runs wherever it is moved, and holds what a user needs beside the binaries."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from e2e.errors.server import BUILD, MODEL

import stemma


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Installed in one place, then moved to another."""
    root = tmp_path_factory.mktemp("install")
    subprocess.run(["cmake", "--install", BUILD, "--prefix", root / "first"], check=True, capture_output=True)
    shutil.move(root / "first", root / "moved")
    yield root / "moved"
    shutil.rmtree(root)


def run(prefix, name, *arguments):
    # An empty environment: no LD_LIBRARY_PATH of a build tree helps.
    return subprocess.run([prefix / "bin" / name, *arguments], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize("name", ["stemma", "stemma-server", "stemma-worker"])
def test_the_binaries_run_after_a_move(prefix, name):
    done = run(prefix, name, "--version")
    assert done.returncode == 0 and re.search(r"\d+\.\d+\.\d+", done.stdout), done.stderr


@pytest.mark.parametrize("name", ["stemma", "stemma-server", "stemma-worker"])
def test_the_runpath_is_relative(prefix, name):
    out = subprocess.run(["readelf", "-d", prefix / "bin" / name], capture_output=True, text=True, check=True).stdout
    paths = re.findall(r"R(?:UN)?PATH\)\s+.*\[(.*)\]", out)
    assert paths == ["$ORIGIN/../lib/stemma"] or paths == ["$ORIGIN/../lib/x86_64-linux-gnu/stemma"], paths


def test_the_workers_libtorch_is_the_installed_one(prefix):
    out = subprocess.run(["ldd", prefix / "bin" / "stemma-worker"], capture_output=True, text=True, check=True,
                         env={"PATH": "/usr/bin:/bin"}).stdout
    found = re.search(r"libtorch_cpu\.so => (\S+)", out).group(1)
    assert pathlib.Path(os.path.realpath(found)).is_relative_to(prefix), out
    assert "not found" not in out, out


def test_an_installed_server_trains(prefix):
    with stemma.LocalServer(MODEL, binary=prefix / "bin" / "stemma") as server, stemma.Client(server.address) as client:
        group = stemma.Group("g", [1, 2, 3], [stemma.Rollout([4, 5], advantage=1.0), stemma.Rollout([6], advantage=-1.0)])
        result = client.update_actor([group], loss=stemma.grpo(), adam=stemma.adamw(1e-3), old="policy")
    assert result.steps[0].outcome == "APPLIED"


def test_documents_and_protos_are_there(prefix):
    documents = prefix / "share" / "doc" / "stemma"
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "docs/errors.md", "docs/run.yaml"):
        assert (documents / name).is_file(), name
    assert "Apache License" in (documents / "LICENSE").read_text()
    protos = prefix / "include" / "stemma" / "proto"
    compiled = subprocess.run(["protoc", f"-I{protos}", "--descriptor_set_out=/dev/null", "stemma/v1/training.proto"],
                              capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    assert not list(protos.rglob("worker*"))  # the workers' protocol is internal
