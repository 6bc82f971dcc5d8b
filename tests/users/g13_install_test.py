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


def has_wheel():
    """Whether LibTorch came in a wheel, which brings its license. The build's script of the installation knows where it lies."""
    torch = re.search(r'(?m)^set\(TORCH_ROOT "(.*)"\)$', (BUILD / "cmake_install.cmake").read_text())[1]
    return any(pathlib.Path(torch).parent.glob("torch-*.dist-info"))


def licenses_of(folder):
    """{library: files, or what is said of it} as libraries.txt has it."""
    return dict(line.split(": ", 1) for line in (folder / "libraries.txt").read_text().splitlines())


def test_the_licenses_of_the_libraries_are_there(prefix):
    folder = prefix / "share" / "doc" / "stemma" / "licenses"
    [libraries] = {path.parent for path in prefix.glob("lib/**/libtorch_cpu.so")}
    said = licenses_of(folder)
    assert set(said) == {path.name for path in libraries.iterdir()} - {"libstemma_cuda.so"} | {"nlohmann/json.hpp", "CLI/CLI.hpp"}
    for name, files in said.items():
        assert files == "none was found where this tree was made" or all((folder / file).stat().st_size for file in files.split()), name
    if has_wheel():
        assert "Facebook" in (folder / said["libtorch_cpu.so"].split()[0]).read_text()


def test_an_installation_into_a_relative_path_has_the_licenses_too(tmp_path):
    try:
        subprocess.run(["cmake", "--install", BUILD, "--prefix", "relative"], check=True, capture_output=True, cwd=tmp_path)
        assert "libtorch_cpu.so" in licenses_of(tmp_path / "relative/share/doc/stemma/licenses")
    finally:
        shutil.rmtree(tmp_path)


def write_licenses(folder, libraries, licenses):
    """Runs the script of the installation in a folder that holds site/torch and cuda."""
    return subprocess.run(["cmake", f"-DLIBRARIES={libraries}", f"-DLICENSES={licenses}", f"-DTORCH_ROOT={folder}/site/torch",
                           f"-DCUDA_ROOT={folder}/cuda", "-P", pathlib.Path(__file__).resolve().parents[2] / "cmake/licenses.cmake"],
                          capture_output=True, text=True, cwd=folder)


@pytest.mark.parametrize("is_relative", [False, True])
def test_a_library_has_the_license_of_its_wheel_or_toolkit_and_one_without_is_told(tmp_path, is_relative):
    wheels = {"torch-2.11.0": ("torch/lib/libtorch_cpu.so", "licenses/LICENSE"),
              "nvidia_fake-13.0": ("nvidia/cu13/lib/libcuinwheel.so.13", "License.txt")}
    for wheel, (library, text) in wheels.items():
        info = tmp_path / "site" / f"{wheel}.dist-info"
        (info / text).parent.mkdir(parents=True)
        (info / text).write_text(wheel)
        (info / "RECORD").write_text(f"{library},sha256=x,1\n{library}.13,sha256=x,1\n")
    (tmp_path / "site" / "torch").mkdir()
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "EULA.txt").write_text("of the toolkit")
    (tmp_path / "lib").mkdir()
    for name in ("libtorch_cpu.so", "libcuinwheel.so.13", "libcuintoolkit.so.13", "libofnobody.so.1", "libstemma_cuda.so"):
        (tmp_path / "lib" / name).touch()
    done = write_licenses(tmp_path, *(("lib", "out") if is_relative else (tmp_path / "lib", tmp_path / "out")))
    assert done.returncode == 0 and "has no license of libofnobody.so.1" in " ".join(done.stderr.split()), done.stderr
    said = licenses_of(tmp_path / "out")
    assert said["libofnobody.so.1"] == "none was found where this tree was made" and "libstemma_cuda.so" not in said
    texts = [(tmp_path / "out" / said[name]).read_text() for name in ("libtorch_cpu.so", "libcuinwheel.so.13", "libcuintoolkit.so.13")]
    assert texts == ["torch-2.11.0", "nvidia_fake-13.0", "of the toolkit"]


def test_an_installation_that_finds_no_library_ends(tmp_path):
    """As where CMake takes a part of its path for a pattern."""
    libraries = tmp_path / "a[b]" / "lib"
    libraries.mkdir(parents=True)
    (libraries / "libtorch_cpu.so").touch()
    done = write_licenses(tmp_path, libraries, tmp_path / "out")
    assert done.returncode and f"no library is found in {libraries}" in " ".join(done.stderr.split()), done.stderr
    assert "where the path has no [ and no ]" in " ".join(done.stderr.split())
