"""`make gpu-bundle`: packs build/gpu_bundle.tar.gz, which checks and measures Stemma on a GPU machine that has LibTorch 2.11 and
CUDA 13 and nothing else of what Stemma is built with.

    third_party/venv/bin/python tests/gpu/bundle.py --build build/release [--output FILE] [--no-build]

What binaries need beside LibTorch, CUDA, glibc and libstdc++ lies in lib/. docs/gpu.md says what is in it and how it is run.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NAME = "stemma-gpu"
BYTES_MAX = 55 * 10**6
TESTS = ["kernels_device_test", "cuda_attention_device_test", "cuda_copy_engine_test", "golden_device_test", "engine_device_test",
         "group_size_test", "nccl_transport_test"]
BENCH, LIBRARY = "gpu_bench", "libstemma_cuda.so"
SCRIPTS = ["gpu_check.sh", "report_page.py", "report_data.py", "report_sections.py", "compare_transformers.py"]
# Parts that gpu_bench does not run: after which of its parts, seconds, meaning.
OTHER_PARTS = {"tests": ("self_check", 240, "device tests: kernels, attention, copies, whole steps, the golden, NCCL with one rank"),
               "transformers": ("kernels", 240, "the same group through transformers, dense and with a cached prompt")}

# What the machine has: the C and C++ runtimes, LibTorch, CUDA.
_SYSTEM = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libutil|libresolv|libgcc_s|libstdc\+\+)\.so\.\d+$")
_TORCH = re.compile(r"lib(c10|c10_cuda|torch|torch_cpu|torch_cuda|gomp)(-[0-9a-f]+)?\.so(\.\d+)?$")
_CUDA = re.compile(r"lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nvrtc|cufft|curand|cusolver|cusparse|cusparseLt|cupti|cufile|"
                   r"nvJitLink|nvToolsExt|nvshmem_host)\.so(\.\d+)*$")


def is_elsewhere(soname):
    return any(pattern.match(soname) for pattern in (_SYSTEM, _TORCH, _CUDA))


def output_of(*command):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-d", path))


def runpaths(path):
    """The folders that a binary itself looks in."""
    found = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.+)\]", output_of("readelf", "-d", path))
    return [folder.replace("$ORIGIN", os.path.dirname(os.path.abspath(path))) for paths in found for folder in paths.split(":")]


def loader_cache():
    """{soname: path} of this system's libraries."""
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    return {name: path for name, path in re.findall(r"^\s*(\S+) \(libc6,x86-64.*\) => (\S+)$", output_of(ldconfig, "-p"), re.M)}


def beside(paths):
    """{soname: path} of all libraries, of all binaries and of each other, that the machine cannot be asked to have."""
    cache, found, todo = loader_cache(), {}, list(paths)
    while todo:
        path = todo.pop()
        for soname in needed(path):
            if is_elsewhere(soname) or soname in found:
                continue
            places = [os.path.join(folder, soname) for folder in runpaths(path)] + [cache.get(soname, "")]
            place = next((place for place in places if place and os.path.exists(place)), None)
            if place is None:
                raise SystemExit(f"{path} needs {soname}, which is nowhere on this machine")
            found[soname] = os.path.realpath(place)
            todo.append(found[soname])
    return found


def symbol_version(paths, prefix):
    """The newest version of a runtime that any of the files asks for."""
    versions = {version for path in paths for version in re.findall(rf"Name: {prefix}_([0-9.]+)", output_of("readelf", "-V", path))}
    return max(versions, key=lambda version: [int(part) for part in version.split(".")], default="none")


def place_binary(source, root, place):
    """Stripped, and with no folder of this machine in it."""
    target = os.path.join(root, place)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    os.chmod(target, 0o755)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)
    if runpaths(target):
        folder = os.path.relpath("lib", os.path.dirname(place))
        with tempfile.NamedTemporaryFile("w", suffix=".cmake") as script:
            script.write(f'file(RPATH_SET FILE "{target}" NEW_RPATH "\\$ORIGIN/{folder}")\n')
            script.flush()
            subprocess.run(["cmake", "-P", script.name], check=True, stdout=subprocess.DEVNULL)


def build(folder):
    targets = [BENCH, *TESTS, *(["stemma_cuda"] if has_cuda(folder) else [])]
    subprocess.run(["cmake", "--build", folder, "--target", *targets], check=True)


def has_cuda(folder):
    """Whether this build makes the library for CUDA devices."""
    return "stemma_cuda:" in output_of("cmake", "--build", folder, "--target", "help") if os.path.isdir(folder) else False


def commit():
    def git(*arguments):
        return subprocess.run(["git", "-C", ROOT, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()

    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + (" with changes" if git("status", "--porcelain", "-uno") else "")


def parts_text(folder):
    """One line for each part, in order: name, seconds, meaning."""
    lines = []
    for line in output_of(os.path.join(folder, "tests", BENCH), "--list").splitlines():
        lines.append(line)
        lines += [f"{name} {seconds} {what}" for name, (after, seconds, what) in OTHER_PARTS.items() if line.split()[0] == after]
    return "\n".join(lines) + "\n"


def fill(folder, target):
    """Makes the bundle's tree."""
    binaries = {os.path.join(folder, "tests", BENCH): f"bin/{BENCH}"}
    binaries.update({os.path.join(folder, "tests", name): f"bin/tests/{name}" for name in TESTS
                     if os.path.exists(os.path.join(folder, "tests", name))})
    library = os.path.join(folder, "bin", LIBRARY)
    if os.path.exists(library):
        binaries[library] = f"lib/{LIBRARY}"
    binaries.update({path: f"lib/{soname}" for soname, path in beside(binaries).items()})
    for source, place in binaries.items():
        place_binary(source, target, place)
    for script in SCRIPTS:
        shutil.copy(os.path.join(HERE, script), target)
    golden = os.path.join(HERE, "golden")
    for name in sorted(os.listdir(golden)):
        if os.path.isdir(os.path.join(golden, name)):
            shutil.copytree(os.path.join(golden, name), os.path.join(target, "golden", name), ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(os.path.join(ROOT, "LICENSE"), target)
    shutil.copy(os.path.join(HERE, "README_bundle.md"), os.path.join(target, "README.md"))
    with open(os.path.join(target, "parts.txt"), "w") as file:
        file.write(parts_text(folder))
    placed = [os.path.join(target, place) for place in binaries.values()]
    about = {"commit": commit(), "torch": "2.11", "cuda": "13", "glibc_at_least": symbol_version(placed, "GLIBC"),
             "glibcxx_at_least": symbol_version(placed, "GLIBCXX"), "has_cuda_library": os.path.exists(library)}
    with open(os.path.join(target, "about.json"), "w") as file:
        json.dump(about, file, indent=1)
        file.write("\n")
    return about


def pack(folder, output):
    """Returns what about.json says."""
    with tempfile.TemporaryDirectory() as scratch:
        about = fill(folder, os.path.join(scratch, NAME))
        temporary = output + ".part"
        with tarfile.open(temporary, "w:gz", compresslevel=9) as archive:
            archive.add(os.path.join(scratch, NAME), NAME, filter=_of_nobody)
        os.replace(temporary, output)
    return about


def _of_nobody(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--output", default=os.path.join(ROOT, "build", "gpu_bundle.tar.gz"))
    parser.add_argument("--no-build", action="store_true", help="packs what is built")
    arguments = parser.parse_args()
    folder = os.path.abspath(arguments.build)
    if not arguments.no_build:
        build(folder)
    about = pack(folder, os.path.abspath(arguments.output))
    size = os.path.getsize(arguments.output)
    print(f"{arguments.output}: {size / 1e6:.1f} MB of at most {BYTES_MAX / 1e6:.0f}; needs glibc {about['glibc_at_least']}, "
          f"GLIBCXX {about['glibcxx_at_least']}")
    if not about["has_cuda_library"]:
        print("without the library for CUDA devices: this build has no CUDA toolkit 13, nvcc or LibTorch with CUDA", file=sys.stderr)
    if size > BYTES_MAX:
        raise SystemExit("the bundle is too large")


if __name__ == "__main__":
    main()
