"""`make bench`: reuse and dense beside their FLOP ideal, and beside transformers and prefix_grouper; writes docs/benchmarks.md,
and the measured part of docs/memory.md.

    third_party/venv/bin/python tests/bench/bench.py --build build/release [--quick] [--output FILE]

All contenders of a shape run in turns in one run, each round in another order. Needs a quiet machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
THREADS = 2
os.environ["OMP_NUM_THREADS"] = str(THREADS)  # before torch is imported

import torch  # noqa: E402
import transformers  # noqa: E402

import baselines  # noqa: E402
import dp_bench  # noqa: E402
import report  # noqa: E402
import shapes  # noqa: E402
from oracle import models  # noqa: E402


class StepBench:
    """The C++ side: the engine's own phases on a model directory."""

    def __init__(self, build, directory):
        self.command = [os.path.join(build, "tests", "step_bench"), "--model", directory, "--threads", str(THREADS)]
        self.process = None

    def profile(self, shape):
        """One pair with its per-op times; FLOPs by the product's formula, which must be ours."""
        output = subprocess.run(self.command + ["--shapes", str(shape), "--pairs", "1"], check=True, text=True,
                                stdout=subprocess.PIPE).stdout
        line = json.loads(output.strip().splitlines()[-1])
        for name, ours in zip(("flops_dense", "flops_reuse"), shapes.flops(shapes.SPEC, shape)):
            if abs(line[name] / ours - 1) > 1e-9:
                raise SystemExit(f"{shape}: {name} is {line[name]:.6g} in step_bench, {ours:.6g} by the formula here")
        return line

    def serve(self):
        self.process = subprocess.Popen(self.command + ["--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question):
        """Seconds of "dense P/R/N" or "reuse P/R/N"; GFLOP/s of "mm"."""
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"step_bench ended with {self.process.wait()} on {question}")
        return float(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def measure_planner(build, quick):
    """[{groups, rollouts, budget, schedule, clusters, seconds}], [{groups, ranks, seconds, imbalance, over_bound}],
    [{groups, of_ranks, hot_rollouts, seconds, whole, split}]"""
    sizes = "256,1024,4096" if quick else "256,1024,4096,16384,62500"
    output = subprocess.run([os.path.join(build, "tests", "planner_bench"), "--groups", sizes], check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    lines = [json.loads(line) for line in output.splitlines()]
    return [line for line in lines if "budget" in line], [line for line in lines if "ranks" in line], [
        line for line in lines if "hot_rollouts" in line]


MEASURED = "## Measured\n"  # what follows in docs/memory.md is memory_bench's


def write_memory_page(build, directory, path, rounds):
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
        file.write(f"{text}{MEASURED}\n`make bench` wrote this part: {report.machine()}; fp32, {THREADS} threads, the model of "
                   "docs/benchmarks.md.\nEach cell of seconds or of a ratio is a median (lower quartile–upper quartile) over "
                   f"runs in turns: {rounds} of each way,\n{4 * rounds} for offload's cost, {2 * rounds} for Apply.\n{tables}")


def contenders_of(shape, bench, directory, with_baselines):
    """{name: function that runs once and returns seconds}, each warmed up."""
    result = {name: (lambda name=name: bench.ask(f"{name} {shape}")) for name in ("dense", "reuse")}
    for run in result.values():
        run()
    if with_baselines and shape.baselines:
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


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--quick", action="store_true", help="the shapes that take seconds, fewer rounds; writes no page")
    parser.add_argument("--no-baselines", action="store_true", help="leave transformers and prefix_grouper out")
    parser.add_argument("--memory-only", action="store_true", help="only the measured part of docs/memory.md")
    parser.add_argument("--memory-rounds", type=int, default=12)
    parser.add_argument("--output", help="the page to write (default: docs/benchmarks.md, with --quick none)")
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)
    if not arguments.output and not arguments.quick:
        arguments.output = os.path.join(ROOT, "docs", "benchmarks.md")
    return arguments


def main():
    arguments = parse_arguments()
    torch.set_num_threads(THREADS)
    chosen = [shape for shape in shapes.SHAPES if not arguments.quick or shape.prompt <= 1024]
    with tempfile.TemporaryDirectory() as scratch:
        directory = models.make(os.path.join(scratch, "model"), shapes.SPEC)
        if arguments.memory_only:
            return write_memory_page(arguments.build, directory, os.path.join(ROOT, "docs", "memory.md"), arguments.memory_rounds)
        bench = StepBench(arguments.build, directory)
        profile = bench.profile(shapes.SHAPES[0])
        results = report.Results(profile["ops"])
        bench.serve()
        for shape in chosen:
            print(f"{shape}:", flush=True)
            contenders = contenders_of(shape, bench, directory, not arguments.no_baselines)
            results.mm_gflops.append(bench.ask("mm"))  # in turns with the rest: the machine's rate may move
            results.rows[shape] = measure(shape, contenders, min(shape.repeats, 3) if arguments.quick else shape.repeats)
            results.mm_gflops.append(bench.ask("mm"))
            del contenders
        bench.close()
        results.planner, results.placement, results.hot = measure_planner(arguments.build, arguments.quick)
        results.ranks = dp_bench.measure(arguments.build, directory, 2 if arguments.quick else 5)
        results.split = dp_bench.measure_split(arguments.build, directory, 2 if arguments.quick else 5)
        if arguments.output:
            write_memory_page(arguments.build, directory, os.path.join(ROOT, "docs", "memory.md"), arguments.memory_rounds)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    page = list(results.page("make bench" if len(sys.argv) <= 3 else " ".join(sys.argv), versions, shapes.SHAPES[0]))
    print("\n".join(page))
    if arguments.output:
        with open(arguments.output, "w") as file:
            file.write("\n".join(page) + "\n")


if __name__ == "__main__":
    main()
