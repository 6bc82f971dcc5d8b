"""The bundle as it is unpacked on another machine: it holds all that it needs but LibTorch, CUDA and the C runtimes, and says what
it would do without any of them."""

import os
import shutil
import subprocess
import sys
import tarfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bundle  # noqa: E402

BUILD = os.environ["STEMMA_BUILD_DIR"]
ROOT = os.path.dirname(os.path.dirname(HERE))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    archive = os.path.join(folder, "gpu_bundle.tar.gz")
    bundle.pack(BUILD, archive)
    assert os.path.getsize(archive) < bundle.BYTES_MAX
    with tarfile.open(archive) as tar:
        tar.extractall(os.path.join(folder, "elsewhere"))
    os.remove(archive)
    return os.path.join(folder, "elsewhere", bundle.NAME)


def run(unpacked, *arguments, **environment):
    """In an empty environment, from a folder that is not the bundle's."""
    return subprocess.run([os.path.join(unpacked, "gpu_check.sh"), *arguments], env=environment, cwd="/", text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)


def binaries(unpacked):
    return [os.path.join(place, name) for folder in ("bin", "lib") for place, _, names in os.walk(os.path.join(unpacked, folder))
            for name in names]


def test_a_dry_run_needs_nothing_and_lists_parts_and_seconds(unpacked):
    ran = run(unpacked, "--dry-run")
    assert ran.returncode == 0, ran.stdout
    for part in ("self_check", "tests", "rates", "dense", "reuse", "offload", "memory", "capacity", "qwen3", "kernels", "waves", "transformers"):
        assert f"  {part} " in ran.stdout, ran.stdout
    assert "unpacked" in ran.stdout and "are expected on one H200; at most 1800 s" in ran.stdout
    chosen = run(unpacked, "60", "--only", "rates,dense", "--dry-run").stdout
    assert "  rates " in chosen and "  reuse " not in chosen and "at most 60 s" in chosen


def test_mistakes_are_clear_errors(unpacked, tmp_path):
    for arguments, said in ((["--only", "rate"], "no such part"), (["--fast"], "unknown argument: --fast"),
                            (["--report"], "--report needs a value"), (["--report", "/no/such/r.json"], "no such folder")):
        ran = run(unpacked, *arguments)
        assert ran.returncode == 2 and said in ran.stdout, ran.stdout
    none = run(unpacked, PATH="/usr/bin:/bin", PYTHON="no-such-python", TORCH_ROOT="")
    if "no LibTorch" not in none.stdout:  # this system's python has a torch of its own
        assert none.returncode in (0, 1, 2)
    ran = run(unpacked, "--run")
    assert ran.returncode == 2 and "--run needs a command" in ran.stdout
    old = tmp_path / "torch"
    old.mkdir()
    (old / "version.py").write_text("__version__ = '2.4.0'\n")
    ran = run(unpacked, TORCH_ROOT=str(old))
    assert ran.returncode == 2 and "2.4.0; this bundle is built for 2.11" in ran.stdout


def test_all_that_is_needed_is_inside_or_the_machines(unpacked):
    inside = set(os.listdir(os.path.join(unpacked, "lib")))
    for path in binaries(unpacked):
        missing = [name for name in bundle.needed(path) if name not in inside and not bundle.is_elsewhere(name)]
        assert not missing, f"{path} needs {missing}"
        assert all(folder.startswith(unpacked) for folder in bundle.runpaths(path)), f"{path} looks in {bundle.runpaths(path)}"


def test_control_a_missing_library_is_noticed():
    assert not bundle.is_elsewhere("libprotobuf.so.32") and not bundle.is_elsewhere("libglog.so.1")
    for name in ("libc.so.6", "libstdc++.so.6", "libtorch_cuda.so", "libcudart.so.13", "libnccl.so.2", "libgomp.so.1"):
        assert bundle.is_elsewhere(name), name


def torch_folders():
    import torch
    root = os.path.dirname(torch.__file__)
    nvidia = os.path.join(os.path.dirname(root), "nvidia")
    wheels = [os.path.join(nvidia, name, "lib") for name in os.listdir(nvidia)] if os.path.isdir(nvidia) else []
    return [os.path.join(root, "lib"), *wheels]


def test_the_loader_finds_everything_with_libtorch_alone(unpacked):
    """ldd resolves with the folders that gpu_check.sh sets, CUDA's own libraries aside, which this machine may lack."""
    path = ":".join([os.path.join(unpacked, "lib"), *torch_folders()])
    for binary in binaries(unpacked):
        found = subprocess.run(["ldd", binary], env={"LD_LIBRARY_PATH": path, "PATH": os.environ["PATH"]}, text=True, stdout=subprocess.PIPE)
        for line in found.stdout.splitlines():
            name = line.split()[0]
            if "not found" in line:
                assert bundle._CUDA.match(name), f"{binary}: {line}"
            if "=>" in line and os.path.basename(name) in os.listdir(os.path.join(unpacked, "lib")):
                assert unpacked in line, f"{binary}: {line}"


def test_no_text_names_this_machine(unpacked):
    for name in [*bundle.SCRIPTS, "README.md", "about.json", "parts.txt"]:
        with open(os.path.join(unpacked, name)) as file:
            assert ROOT not in file.read(), name


def test_the_whole_check_runs_on_the_cpu(unpacked, tmp_path):
    """With a CPU in the place of the GPU: one part that is quick there, and a report that becomes a page."""
    import torch
    root = os.path.dirname(torch.__file__)
    shutil.copytree(unpacked, tmp_path / "copy")
    listed = tmp_path / "copy" / "parts.txt"
    listed.write_text("self_check 1 x\ntests 1 x\n")
    for name in os.listdir(tmp_path / "copy" / "bin" / "tests"):
        if name != "golden_device_test":
            os.remove(tmp_path / "copy" / "bin" / "tests" / name)
    ran = subprocess.run([str(tmp_path / "copy" / "gpu_check.sh"), "300", "--device", "cpu", "--report", str(tmp_path / "r.json")],
                         env={"TORCH_ROOT": root, "PATH": os.environ["PATH"], "PYTHON": sys.executable, "OMP_NUM_THREADS": "2"}, cwd="/",
                         text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    assert "golden_device_test: exit status 0" in ran.stdout, ran.stdout
    assert "## GPU" in ran.stdout and "4 passed, 0 skipped, none failed" in ran.stdout, ran.stdout
    assert ran.returncode == 0, ran.stdout
