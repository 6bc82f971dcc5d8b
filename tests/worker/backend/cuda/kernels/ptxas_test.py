"""What ptxas reported when the CUDA kernels were compiled: no spills, no stack, registers that the launch bounds allow; and
16-byte accesses in the PTX of kernels that take packs."""

import concurrent.futures
import os
import pathlib
import re
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
    sizes = (_SOURCES / "launch_sizes.h").read_text()
    return [(sizes + source.read_text(), report.read_text()) for source, report in reports]


def test_no_kernel_spills_or_has_more_registers_than_its_launch_allows():
    for source, report in _reports():
        bounds = launch_bounds(source)
        assert {kernel_of(mangled, bounds) for mangled, *_ in compiled(report)} == set(bounds)
        assert {architecture for _, architecture, *_ in compiled(report)} == _ARCHITECTURES
        assert not offences(report, bounds)


def _nvcc():
    """The compiler that the build has: without it nothing would have been compiled."""
    found = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]).glob("CMakeFiles/*/CMakeCUDACompiler.cmake")
    return re.search(r'^set\(CMAKE_CUDA_COMPILER "(.+)"\)', next(found).read_text(), re.MULTILINE).group(1)


def _ptx(name):
    command = [_nvcc(), "-ptx", "-arch=compute_80", "-std=c++20", "--expt-relaxed-constexpr", f"-I{_ROOT}", _SOURCES / f"{name}.cu", "-o", "-"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def without_packs(ptx):
    """[kernel] of those that are made for packs and read, or write, none of 16 bytes. What searches or sums an array, and the head's
    forward, write single numbers."""
    found = []
    for entry in re.split(r"\.entry\s+", ptx)[1:]:
        kernel = re.match(r"\w+", entry).group()
        if not _IN_PACKS.search(kernel):
            continue
        reads, writes = (re.search(rf"\b{access}\.global(\.\w+)*\.v4\.\w32\b", entry) for access in ("ld", "st"))
        if not reads or not (writes or any(name in kernel for name in _WRITES_NO_PACKS)):
            found.append(kernel)
    return found


_IN_PACKS = re.compile(r"Li[48]E")
_WRITES_NO_PACKS = ("FindNonfinite", "SumSquares", "SumWords", "HeadForward")


def test_packs_are_read_and_written_in_16_bytes():
    _reports()
    names = ("embedding", "finite", "head", "merge", "norm", "qkv", "swiglu", "vector_norm", "word_sum")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, ptx in zip(names, pool.map(_ptx, names)):
            kernels = re.findall(r"\.entry\s+(\w+)", ptx)
            in_packs = [kernel for kernel in kernels if _IN_PACKS.search(kernel)]
            assert in_packs and len(in_packs) < len(kernels), name
            assert not without_packs(ptx)


def test_packs_that_fell_apart_are_noticed():
    whole = ".entry _Z1aKernelILi8EEv(\nld.global.nc.v4.u32 {a}, [b];\nst.global.wb.v4.f32 [b], {a};\n"
    assert not without_packs(whole)
    for broken in (whole.replace("ld.global.nc.v4.u32", "ld.global.nc.v2.u32"), whole.replace("st.global.wb.v4.f32", "st.global.f32")):
        assert without_packs(broken) == ["_Z1aKernelILi8EEv"]
        assert not without_packs(broken.replace("Li8E", "Li1E"))
    reading = whole.replace("aKernel", "aSumSquares").replace("st.global.wb.v4.f32", "st.global.f64")
    assert not without_packs(reading) and without_packs(reading.replace("v4", "v2"))


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
