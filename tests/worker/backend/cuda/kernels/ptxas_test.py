"""What ptxas reported when the CUDA kernels were compiled: no spills, no stack, registers that the launch bounds allow; and
16-byte accesses in the machine code of kernels that take packs."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[5]
_SOURCES = _ROOT / "worker/backend/cuda/kernels"
_OBJECTS = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "worker/backend/cuda/kernels/CMakeFiles/stemma_cuda_launches.dir"
_REGISTERS_OF_A_MULTIPROCESSOR = 65536
_ARCHITECTURES = {"sm_80", "sm_90", "sm_100"}


def compiled(report):
    """(kernel, architecture, registers, bytes of stack and spills) of each entry function of a report."""
    found = []
    for block in report.split("Compiling entry function '")[1:]:
        mangled, architecture = re.match(r"(\w+)' for '(\w+)'", block).groups()
        memory = sum(int(n) for n in re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", block))
        found.append((mangled, architecture, int(re.search(r"Used (\d+) registers", block).group(1)), memory))
    return found


def launch_bounds(source):
    """{kernel: threads that share a multiprocessor's registers at least} of a .cu file: those of a block, times blocks."""
    constants = {name: value for line in re.findall(r"constexpr int ([^;]+);", source)
                 for name, value in re.findall(r"(\w+) = (\d+)", line)}
    return {kernel: int(constants.get(threads, threads)) * int(constants.get(blocks, blocks or 1))
            for threads, blocks, kernel in re.findall(r"__launch_bounds__\((\w+)(?:, (\w+))?\)\s+(\w+)\(", source)}


def kernel_of(mangled, bounds):
    """The kernel's name as the source has it."""
    return next(name for name in sorted(bounds, key=len, reverse=True) if f"{len(name)}{name}" in mangled)


def offences(report, bounds):
    found = []
    for mangled, architecture, registers, memory in compiled(report):
        threads = bounds[kernel_of(mangled, bounds)]
        if memory:
            found.append(f"{mangled} for {architecture}: {memory} bytes of stack or spills")
        if registers * threads > _REGISTERS_OF_A_MULTIPROCESSOR:
            found.append(f"{mangled} for {architecture}: {registers} registers in {threads} threads")
    return found


def _reports():
    """(source, report) of every .cu file; skips where none was compiled."""
    reports = [(path, _OBJECTS / f"{path.name}.o.ptxas") for path in sorted(_SOURCES.glob("*.cu"))]
    if not any(report.is_file() for _, report in reports):
        pytest.skip("no CUDA toolkit: no kernel was compiled")
    return [(source.read_text(), report.read_text()) for source, report in reports]


def test_no_kernel_spills_or_has_more_registers_than_its_launch_allows():
    for source, report in _reports():
        bounds = launch_bounds(source)
        assert {kernel_of(mangled, bounds) for mangled, *_ in compiled(report)} == set(bounds)
        assert {architecture for _, architecture, *_ in compiled(report)} == _ARCHITECTURES
        assert not offences(report, bounds)


def test_packs_are_read_and_written_in_16_bytes():
    _reports()
    cuobjdump = shutil.which("cuobjdump")
    if cuobjdump is None:
        pytest.skip("no cuobjdump: machine code cannot be read")
    for name in ("embedding", "finite", "head", "merge", "norm", "qkv", "swiglu"):
        code = subprocess.run([cuobjdump, "-sass", _OBJECTS / f"{name}.cu.o"], check=True, capture_output=True, text=True).stdout
        functions = re.split(r"\n\s*Function : ", code)[1:]
        in_packs = [f for f in functions if re.match(r"\w+Li[48]E", f)]
        assert in_packs and len(in_packs) < len(functions)
        for function in in_packs:
            assert re.search(r"LDG\.E\.(\w+\.)*128", function), function.split("\n")[0]
            # What finds a number writes none of it.
            assert name == "finite" or re.search(r"STG\.E\.(\w+\.)*128", function) or "HeadForward" in function, function.split("\n")[0]


_BOUNDS = {"NormKernel": 512, "RmsNormKernel": 512}
_REPORT = """ptxas info    : Compiling entry function '_ZN1a13RmsNormKernelIfLi1EEEvi' for 'sm_90'
ptxas info    : Function properties for _ZN1a13RmsNormKernelIfLi1EEEvi
    {} bytes stack frame, {} bytes spill stores, {} bytes spill loads
ptxas info    : Used {} registers, used 1 barriers, 512 bytes smem
"""


def test_spills_stack_and_too_many_registers_are_noticed():
    assert not offences(_REPORT.format(0, 0, 0, 128), _BOUNDS)
    for numbers in ((8, 0, 0, 64), (0, 4, 0, 64), (0, 0, 4, 64), (0, 0, 0, 129)):
        assert len(offences(_REPORT.format(*numbers), _BOUNDS)) == 1, numbers


def test_launch_bounds_are_read_by_name_and_by_number():
    source = ("constexpr int kThreads = 128;\n__global__ void __launch_bounds__(kThreads) AKernel(int a) {}\n"
              "__global__ void __launch_bounds__(64, 4)\n    BKernel(int b) {}\n")
    assert launch_bounds(source) == {"AKernel": 128, "BKernel": 256}
    assert kernel_of("_ZN1a13RmsNormKernelIfLi1EEEvi", _BOUNDS) == "RmsNormKernel"
