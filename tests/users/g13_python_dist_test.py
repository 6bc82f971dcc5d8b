"""G13, the Python half: `make dist` builds an sdist and a wheel under a name of their own; the wheel works in a plain
virtual environment."""

import email
import os
import re
import subprocess
import tarfile
import zipfile

import plain_venv
import pytest

ROOT = plain_venv.ROOT
PACKAGE = ROOT / "client" / "python" / "stemma"
FILES = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*") if path.suffix in (".py", ".json", ".typed")}
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return plain_venv.dist(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    python = plain_venv.make(tmp_path_factory.mktemp("plain") / "env")
    plain_venv.install(python, built[1])
    return python


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return email.message_from_string(archive.read(name).decode())


def test_g13_make_dist_runs_this_script():
    assert "third_party/venv/bin/python client/python/dist.py build/dist" in (ROOT / "Makefile").read_text()


def test_g13_the_distribution_has_its_own_name_and_the_projects_version(built):
    fields = metadata(built[1])
    assert fields["Name"] == "stemma-rl"
    assert fields["Version"] == re.search(r"project\(stemma VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert {r.split(">")[0].split(";")[0] for r in fields.get_all("Requires-Dist")} == {"grpcio", "protobuf", "numpy"}
    assert all("extra" in r for r in fields.get_all("Requires-Dist") if r.startswith("numpy"))
    assert fields["License"] == "Apache-2.0" or fields["License-Expression"] == "Apache-2.0"
    assert [path.name for path in built] == [f"stemma_rl-{fields['Version']}.tar.gz",
                                             f"stemma_rl-{fields['Version']}-py3-none-any.whl"]


def test_g13_both_hold_the_whole_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as archive:
        assert {n for n in archive.namelist() if ".dist-info/" not in n} == FILES
    with tarfile.open(built[0]) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    assert FILES | {"pyproject.toml", "README.md", "PKG-INFO"} <= names
    assert not [n for n in names if n.endswith(".pyc") or n.startswith(("tests", "build"))]


def test_g13_the_wheel_brings_the_wire_with_it(python, tmp_path):
    """The messages and the service come from the package: there is no proto folder beside it."""
    script = """
import importlib.metadata, stemma, sys
from stemma import _proto
assert stemma.__version__ == importlib.metadata.version("stemma-rl") and stemma.verl.metrics
assert "site-packages" in stemma.__file__ and "numpy" not in sys.modules and "torch" not in sys.modules
print(*sorted(f.name for f in _proto.FILES.file if f.name.startswith("stemma/")), sep="\\n")
print(len(list(_proto.methods("stemma.v1.TrainingService"))))
"""
    done = subprocess.run([python, "-c", script], cwd=tmp_path, env=PLAIN, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *files, calls = done.stdout.split()
    assert set(files) == {str(p.relative_to(ROOT / "proto")) for p in (ROOT / "proto" / "stemma" / "v1").glob("*.proto")}
    assert int(calls) == len(re.findall(r"(?m)^\s*rpc ", (ROOT / "proto/stemma/v1/training.proto").read_text()))


def test_g13_everything_public_works_without_numpy(python, tmp_path):
    script = """
import stemma
from stemma import _proto, groups
group = stemma.Group("g", [1, 2], [stemma.Rollout([3, 4], mask=[1, 0], reward=1.0, old_log_probs=[-1.0, -2.0])])
parts = groups.parts("update", _proto.UpdateHeader(), [group])
assert parts[1].group.rollouts[0].response_mask == b"\\x01"
with stemma.trace.TraceWriter("t.jsonl") as writer:
    writer.write([group], stemma.grpo(), stemma.adamw(1e-6))
assert len(list(stemma.trace.read("t.jsonl"))) == 1
try:
    stemma.Client("127.0.0.1:1", connect_timeout_s=0.1).info()
except stemma.StemmaError as error:
    assert "connection refused" in str(error)
else:
    raise AssertionError("there is no server")
"""
    done = subprocess.run([python, "-c", script], cwd=tmp_path, env=PLAIN, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_g13_the_sdist_installs_too(built, tmp_path):
    """Through pip's own build, as it would be where there is no wheel."""
    python = plain_venv.make(tmp_path / "env", more=["setuptools"])
    plain_venv.install(python, built[0])
    done = subprocess.run([python, "-c", "import stemma; print(stemma.grpo())"], cwd=tmp_path, env=PLAIN, capture_output=True,
                          text=True)
    assert "old='auto'" in done.stdout, done.stderr
