"""The bundle as it is unpacked on another machine: it holds all that it needs but LibTorch, CUDA and the C runtimes, and says what
it would do without any of them."""

import json
import os
import re
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
    for part in ("self_check", "tests", "rates", "dense", "reuse", "offload", "memory", "capacity", "qwen3", "kernels", "waves", "transformers",
                 "reuse_large"):
        assert f"  {part} " in ran.stdout, ran.stdout
    assert "unpacked" in ran.stdout and "are expected on one H200; at most 1800 s" in ran.stdout
    # What takes many minutes comes last.
    parts = [line.split()[0] for line in open(os.path.join(unpacked, "parts.txt"))]
    assert parts[:2] == ["self_check", "tests"] and parts[-1] == "reuse_large", parts
    chosen = run(unpacked, "60", "--only", "rates,dense", "--dry-run").stdout
    assert "  rates " in chosen and "  reuse " not in chosen and "at most 60 s" in chosen
    assert run(unpacked, "60", "--only", "rates, dense ", "--dry-run").stdout == chosen


def test_mistakes_are_clear_errors(unpacked, tmp_path):
    for arguments, said in ((["--only", "rate"], "no such part"), (["--only", "r.tes"], "--only r.tes: no such part"),
                            (["--only", ",tests"], "no such part"), (["--fast"], "unknown argument: --fast"),
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


def test_every_test_of_a_device_is_in_the_bundle(tmp_path):
    """But for those that this build lacks, as it has no CUDA."""
    # Where the build is asked, its log of the tests that run now is begun anew.
    (tmp_path / "CTestTestfile.cmake").write_text(f'subdirs("{BUILD}")\n')
    listed = subprocess.run(["ctest", "--test-dir", tmp_path, "-N", "-L", "^device$"], check=True, text=True, stdout=subprocess.PIPE).stdout
    names = re.findall(r"Test +#\d+: (\S+)", listed)
    assert "engine_device_test" in names and set(names) <= set(bundle.TESTS), names


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


@pytest.fixture
def small(unpacked, tmp_path):
    """A copy with the given parts and test binaries; returns (folder, run)."""
    import torch
    folder, tests_folder = tmp_path / "copy", tmp_path / "copy" / "bin" / "tests"
    tests_folder.mkdir(parents=True)
    os.symlink(os.path.join(unpacked, "lib"), folder / "lib")
    os.symlink(os.path.join(unpacked, "golden"), folder / "golden")
    for name in [*bundle.SCRIPTS, "about.json", os.path.join("bin", "gpu_bench")]:
        shutil.copy(os.path.join(unpacked, name), folder / name)

    def check(parts, tests, *arguments, **environment):
        (folder / "parts.txt").write_text(parts)
        for name in os.listdir(tests_folder):
            os.remove(tests_folder / name)
        for name, content in tests.items():
            if content:
                (tests_folder / name).write_text(f"#!/bin/sh\n{content}\n")
                (tests_folder / name).chmod(0o755)
            else:
                shutil.copy(os.path.join(unpacked, "bin", "tests", name), tests_folder)
        return subprocess.run([str(folder / "gpu_check.sh"), *arguments, "--report", str(tmp_path / "r.json")], cwd="/", text=True,
                              env={"TORCH_ROOT": os.path.dirname(torch.__file__), "PATH": os.environ["PATH"], "PYTHON": sys.executable,
                                   "OMP_NUM_THREADS": "2", **environment},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)

    return folder, check


def part_of(tmp_path, name):
    with open(tmp_path / "r.json") as file:
        return json.load(file)["parts"][name]


PASSES = """for a; do case $a in --gtest_output=*) echo '{"testsuites": [{"name": "A", "testsuite": [{"name": "B", "result": "COMPLETED"}]}]}' \
>${a#--gtest_output=json:};; esac; done"""


def test_the_whole_check_runs_on_the_cpu(small, tmp_path):
    """With a CPU in the place of the GPU: one part that is quick there, and a report that becomes a page."""
    _, check = small
    ran = check("self_check 1 x\ntests 1 x\n", {"golden_device_test": ""}, "300", "--device", "cpu")
    assert "golden_device_test: exit status 0" in ran.stdout, ran.stdout
    assert "## GPU" in ran.stdout and "6 passed, 0 skipped, none failed" in ran.stdout, ran.stdout
    assert "* met: device tests" in ran.stdout and part_of(tmp_path, "tests")["state"] == "done"
    assert ran.returncode == 0, ran.stdout


def test_binaries_that_have_no_time_or_end_badly_are_no_pass(small, tmp_path):
    _, check = small
    slow = PASSES + "; sleep 16"
    ran = check("tests 60 x\n", {"a_test": slow, "b_test": slow, "c_test": PASSES}, "16", "--device", "cpu")
    assert "c_test: out of time" in ran.stdout and ran.returncode == 1, ran.stdout
    part = part_of(tmp_path, "tests")
    rows = {row["binary"]: row for row in part["tables"]["tests"]}
    assert rows["a_test"]["exit_status"] == 124 and rows["c_test"]["not_measured"] == "out of time"
    assert 7 <= rows["a_test"]["seconds"] <= 12, "the first that hangs leaves half of the part's time to the others"
    assert part["seconds"] >= 15 and part["state"] == "out of time" and "* **missed**: device tests" in ran.stdout
    assert "failed: a_test (exit status 124), b_test (exit status 124), out of time: c_test." in ran.stdout
    ran = check("tests 60 x\n", {"a_test": PASSES, "b_test": PASSES + "; exit 3", "c_test": PASSES}, "60", "--device", "cpu")
    assert "failed: b_test (exit status 3)." in ran.stdout and "* **missed**: device tests" in ran.stdout, ran.stdout
    ran = check("tests 60 x\n", dict.fromkeys(["a_test", "b_test", "c_test"], PASSES), "60", "--device", "cpu")
    assert "* met: device tests" in ran.stdout and ran.returncode == 0, ran.stdout


def test_what_runs_takes_no_part_from_the_list(small, tmp_path):
    """A bench that reads all that it is given."""
    folder, check = small
    seen = tmp_path / "seen"
    (folder / "bin" / "gpu_bench").write_text(f'#!/bin/bash\ncat >>{seen}\ncat <&3 >>{seen} 2>/dev/null\nexit 0\n')
    ran = check("rates 1 x\ndense 1 x\nreuse 1 x\n", {}, "60", "--device", "cpu")
    assert [f"== {part}, at most" in ran.stdout for part in ("rates", "dense", "reuse")] == [True] * 3, ran.stdout
    assert ran.returncode == 0 and seen.read_text() == "", ran.stdout


BENCH = """for a; do case $last in --only) part=$a;; --seconds) echo "seconds $a" >>SEEN;; esac; last=$a; done
case "$*" in *--only*) [ $part != slow ] || exec sleep 99;; *--end-part*) echo "end $*" >>SEEN;; esac"""


def test_no_part_takes_the_time_of_those_behind_it(small, tmp_path):
    """A bench that hangs in its first part, and notes how long each may take."""
    folder, check = small
    seen = tmp_path / "seen"
    (folder / "bin" / "gpu_bench").write_text("#!/bin/bash\n" + BENCH.replace("SEEN", str(seen)) + "\n")
    (folder / "gpu_check.sh").write_text((folder / "gpu_check.sh").read_text().replace("2 * $1 + 60", "2 * $1 + 1"))
    ran = check("slow 1 x\nquick 20 x\nlast 500 x\n", {}, "200", "--device", "cpu")
    assert "== slow, at most 3 s" in ran.stdout and "== quick, at most 41 s" in ran.stdout, ran.stdout
    lines = seen.read_text().splitlines()
    assert lines[0] == "seconds 3" and lines[2] == "seconds 37", lines
    assert re.search(r"--end-part slow --status 124 --took [345]$", lines[1]), lines
    # The last one has what is left, which is less than it is expected to take.
    assert 100 < int(lines[3].split()[1]) <= 180 and len(lines) == 4, lines
    # In a short run a part that hangs takes half of it.
    ran = check("slow 100 x\nquick 100 x\n", {}, "9", "--device", "cpu", "--only", "slow,quick")
    assert "== slow, at most 5 s" in ran.stdout or "== slow, at most 4 s" in ran.stdout, ran.stdout
    assert "== quick, at most" in ran.stdout, ran.stdout
    ran = check("slow 1 x\nquick 1 x\n", {}, "0", "--device", "cpu")
    assert "slow: out of time" in ran.stdout and "quick: out of time" in ran.stdout and ran.returncode == 1, ran.stdout


@pytest.mark.parametrize("device, shown, seen", [("cuda:0", "", "0"), ("cuda:2", "", "2"), ("cuda", "", "0"), ("cuda:1", "5,7", "7")])
def test_processes_see_the_chosen_gpu_alone(small, device, shown, seen):
    folder, check = small
    ran = subprocess.run([str(folder / "gpu_check.sh"), "--device", device, "--run", "env"], text=True, stdout=subprocess.PIPE, check=True,
                         env={**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": shown})
    assert f"CUDA_VISIBLE_DEVICES={seen}\n" in ran.stdout and "STEMMA_TEST_DEVICE=cuda:0\n" in ran.stdout, ran.stdout
    smi = folder / "smi"
    smi.mkdir()
    (smi / "nvidia-smi").write_text('#!/bin/sh\necho "card $2"\n')
    (smi / "nvidia-smi").chmod(0o755)
    (folder / "bin" / "gpu_bench").write_text('#!/bin/sh\necho "$@"\n')
    ran = check("rates 1 x\n", {}, "60", "--device", device, PATH=f"{smi}:{os.environ['PATH']}", CUDA_VISIBLE_DEVICES=shown)
    assert f"--hardware card {seen}" in ran.stdout and "--device cuda:0 --only rates" in ran.stdout, ran.stdout


@pytest.mark.parametrize("arguments, shown, seen", [([], "", "none"), ([], "5,7", "5,7"), (["--device", "cuda:1"], "5,7", "7")])
def test_exchanges_between_gpus_see_all_unless_one_is_chosen(small, tmp_path, arguments, shown, seen):
    folder, check = small
    (folder / "bin" / "gpu_bench").write_text("#!/bin/sh\n")
    tests = {name: "echo seen=${CUDA_VISIBLE_DEVICES-none}" for name in ("a_test", "nccl_transport_test")}
    check("tests 1 x\n", tests, "60", *arguments, CUDA_VISIBLE_DEVICES=shown)
    of = {name: (tmp_path / "r.json.logs" / f"{name}.log").read_text().strip() for name in tests}
    assert of["nccl_transport_test"] == f"seen={seen}", of
    assert of["a_test"] == f"seen={'0' if not shown else '7' if arguments else '5'}", of


def test_a_device_that_is_not_there_is_a_clear_error(unpacked):
    for arguments, shown, said in (("cuda:x", "", "where K is a number"), ("cuda:2", "5,7", "CUDA_VISIBLE_DEVICES shows 2")):
        ran = run(unpacked, "--device", arguments, "--run", "env", TORCH_ROOT=os.path.dirname(torch_folders()[0]), PATH=os.environ["PATH"],
                  CUDA_VISIBLE_DEVICES=shown)
        assert ran.returncode == 2 and said in ran.stdout, ran.stdout


def test_one_run_at_a_time_writes_a_report(small, tmp_path):
    import fcntl
    _, check = small
    with open(tmp_path / "r.json.run", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = check("rates 1 x\n", {}, "60", "--device", "cpu")
        assert ran.returncode == 2 and "another run writes" in ran.stdout, ran.stdout
    assert not (tmp_path / "r.json").exists()


def test_a_report_folder_that_cannot_be_written_is_a_clear_error(unpacked):
    ran = run(unpacked, "--report", "/proc/self/r.json", "--device", "cpu", TORCH_ROOT=os.path.dirname(torch_folders()[0]),
              PATH=os.environ["PATH"])
    assert ran.returncode == 2 and "r.json cannot be written" in ran.stdout, ran.stdout


def test_a_report_that_the_bench_began_says_of_which_build_it_is(unpacked, tmp_path):
    ran = run(unpacked, "--device", "cpu", "--run", os.path.join(unpacked, "bin", "gpu_bench"), "--report", str(tmp_path / "r.json"), "--device",
              "cpu", "--tiny", "--only", "rates", "--seconds", "0", TORCH_ROOT=os.path.dirname(torch_folders()[0]), PATH=os.environ["PATH"])
    assert ran.returncode == 0, ran.stdout
    with open(tmp_path / "r.json") as file, open(os.path.join(unpacked, "about.json")) as about:
        report, commit = json.load(file), json.load(about)["commit"]
    assert report["taken"]["commit"] == report["parts"]["rates"]["commit"] == commit
