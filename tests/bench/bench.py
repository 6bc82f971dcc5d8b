"""`make bench`: measures all parts, or those that are named, and writes their sections of docs/benchmarks.md, and the measured
part of docs/memory.md.

    third_party/venv/bin/python tests/bench/bench.py --build build/release [--parts NAME...] [--quick] [--output FILE]

    shapes      reuse and dense beside their FLOP ideal
    baselines   the same beside transformers and prefix_grouper
    planner     plans and placements
    ranks       two workers beside one, and a hot group split between them
    copy        two workers that hold one copy of the model beside one
    simulation  the simulator beside measured steps of 4 and 8 workers
    storage     journal, spool, checkpoints, restart
    memory      docs/memory.md: policies, offload, what fits

All contenders of a shape run in turns in one run, each round in another order. Needs a quiet machine. A part is written
as soon as it is measured.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
THREADS = 2
os.environ["OMP_NUM_THREADS"] = str(THREADS)  # before torch is imported

import torch  # noqa: E402
import transformers  # noqa: E402

import baselines  # noqa: E402
import copy_bench  # noqa: E402
import dp_bench  # noqa: E402
import page  # noqa: E402
import planner  # noqa: E402
import report  # noqa: E402
import shapes  # noqa: E402
import simulation_bench  # noqa: E402
import storage  # noqa: E402
from oracle import models  # noqa: E402
from step_process import StepBench  # noqa: E402


MEASURED = "## Measured\n"  # what follows in docs/memory.md is memory_bench's


def write_memory_page(build, directory, path, rounds, taken):
    """Policies, offload, capacity and the planner's choices, by the C++ side."""
    command = [os.path.join(build, "tests", "memory_bench"), "--model", directory, "--threads", str(THREADS),
               "--rounds", str(rounds)]
    tables = ""
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            tables += line
    if process.returncode != 0:
        raise SystemExit(f"memory_bench ended with {process.returncode}; {path} is as it was")
    with open(path) as file:
        text = file.read().split(MEASURED)[0]
    with open(path, "w") as file:
        file.write(f"{text}{MEASURED}\n{taken}\n\nfp32, {THREADS} threads, the model of docs/benchmarks.md.\nEach cell of seconds or "
                   "of a ratio is a median (lower quartile–upper quartile) over "
                   f"runs in turns: {rounds} of each way,\n{4 * rounds} for offload's cost, {2 * rounds} for Apply.\n{tables}")


def contenders_of(shape, bench, directory, with_baselines):
    """{name: function that runs once and returns seconds}, each warmed up."""
    result = {name: (lambda name=name: bench.ask(f"{name} {shape}")) for name in ("dense", "reuse")}
    for run in result.values():
        run()
    if with_baselines:
        group = baselines.Group(shape.prompt, shape.response, shape.count, shapes.SPEC.vocab)
        dense, grouper = baselines.fastest_dense(directory, group), baselines.PrefixGrouperGroup(directory)
        grouper.run(group)
        if abs(dense.loss - grouper.loss) > 1e-4 * max(1.0, abs(dense.loss)):
            raise SystemExit(f"{shape}: the baselines disagree: loss {dense.loss} and {grouper.loss}")
        print(f"  transformers at its fastest: {dense.model.config._attn_implementation}, micro-batch {dense.micro_batch}")
        result.update(transformers=lambda: dense.run(group), prefix_grouper=lambda: grouper.run(group))
    return result


def measure(shape, contenders, repeats):
    times, names = {name: [] for name in contenders}, list(contenders)
    for turn in range(repeats):
        for name in names if turn % 2 == 0 else reversed(names):
            times[name].append(contenders[name]())
        print(f"  round {turn + 1}: " + "  ".join(f"{name} {values[-1]:.2f} s" for name, values in times.items()), flush=True)
    return times


def measure_shapes(run, chosen, with_baselines):
    """report.Times of the shapes, and the seconds by op of the first."""
    bench, times = StepBench(run.build, run.directory, THREADS), report.Times()
    ops = bench.profile(shapes.SHAPES[0])["ops"]
    bench.serve()
    for shape in chosen:
        print(f"{shape}:", flush=True)
        contenders = contenders_of(shape, bench, run.directory, with_baselines)
        times.mm_gflops.append(bench.ask("mm"))  # in turns with the rest: the machine's rate may move
        times.rows[shape] = measure(shape, contenders, min(shape.repeats, 3) if run.quick else shape.repeats)
        times.mm_gflops.append(bench.ask("mm"))
        del contenders
    bench.close()
    return times, ops


def shapes_of(run):
    return [shape for shape in shapes.SHAPES if not run.quick or shape.prompt <= 1024]


def shape_section(run):
    times, ops = measure_shapes(run, shapes_of(run), with_baselines=False)
    return times.own_section(ops, shapes.SHAPES[0])


def baseline_section(run):
    times, _ = measure_shapes(run, [shape for shape in shapes_of(run) if shape.baselines], with_baselines=True)
    return times.baseline_section()


GPU_TITLE = "GPU"  # the section that tests/gpu/report_page.py makes, of a report from another machine
# Part -> (its section's title, what measures it and returns the section's lines), in the page's order.
PARTS = {
    "shapes": ("Reuse against our own dense baseline", shape_section),
    "baselines": ("Against what one would run instead", baseline_section),
    "planner": (planner.TITLE, lambda run: planner.section(run.build, run.quick)),
    "ranks": (dp_bench.TITLE, lambda run: dp_bench.section(run.build, run.directory, 2 if run.quick else 5)),
    "copy": (copy_bench.TITLE, lambda run: copy_bench.section(run.build, run.directory, 2 if run.quick else 5)),
    "simulation": (simulation_bench.TITLE, lambda run: simulation_bench.section(run.build, run.directory, 1 if run.quick else 2)),
    "storage": (storage.TITLE, lambda run: storage.section(run.build, run.directory, run.quick)),
}
MEMORY = "memory"  # its tables are in docs/memory.md


@dataclasses.dataclass(frozen=True)
class Run:
    build: str
    directory: str  # of the model
    quick: bool


def commit():
    """What is measured: the commit, and whether anything but what this writes differs from it."""
    def git(*arguments):
        return subprocess.run(["git", "-C", ROOT, *arguments], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return git("rev-parse", "--short=10", "HEAD") + (" with changes" if changed else "")


def taken_line(part, quick):
    command = f"make bench ARGS=\"--parts {part}{' --quick' if quick else ''}\""
    return (f"Taken by `{command}` at commit {commit()}; {report.machine()}; torch {torch.__version__}, transformers "
            f"{transformers.__version__}.")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, MEMORY], default=[*PARTS, MEMORY], metavar="NAME",
                        help=f"of {', '.join([*PARTS, MEMORY])}; default: all")
    parser.add_argument("--quick", action="store_true", help="what takes seconds, fewer rounds; writes no page")
    parser.add_argument("--memory-rounds", type=int, default=12)
    parser.add_argument("--output", help="the page to write (default: docs/benchmarks.md, with --quick none)")
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)
    if not arguments.output and not arguments.quick:
        arguments.output = os.path.join(ROOT, "docs", "benchmarks.md")
    return arguments


def write_section(path, title, lines):
    text = ""
    if os.path.exists(path):
        with open(path) as file:
            text = file.read()
    new = page.replaced(text, {title: lines}, [*(title for title, _ in PARTS.values()), GPU_TITLE])
    with open(path, "w") as file:
        file.write(new)


def main():
    arguments = parse_arguments()
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(arguments.build, models.make(os.path.join(scratch, "model"), shapes.SPEC), arguments.quick)
        for part in dict.fromkeys(arguments.parts):
            begin, taken = time.monotonic(), taken_line(part, arguments.quick)
            if part == MEMORY:
                if not arguments.quick:
                    write_memory_page(run.build, run.directory, os.path.join(ROOT, "docs", "memory.md"), arguments.memory_rounds,
                                      taken)
            else:
                title, section = PARTS[part]
                lines = [taken, "", *section(run)]
                print("\n".join([f"## {title}", "", *lines]), flush=True)
                if arguments.output:
                    write_section(arguments.output, title, lines)
            print(f"{part}: {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
