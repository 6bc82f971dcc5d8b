"""Two builds in turns on the benchmark's shapes: whether a change that should cost nothing does.

    git worktree add ../before HEAD~1 && make -C ../before build
    third_party/venv/bin/python tests/bench/before_after.py --before ../before/build/release --after build/release

Forward and backward of one prompt group, without the optimizer, fp32, two threads. Each round asks both builds, every other
one in the other order, so that what else the machine does meets both. One row for each shape and schedule: median seconds,
and the ratio of the pairs, median (lowest–highest). Needs a quiet machine; prints, and judges nothing.
"""

import argparse
import os
import statistics
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))

import shapes  # noqa: E402
from oracle import models  # noqa: E402
from step_process import StepBench  # noqa: E402

THREADS = 2


def pairs(before, after, question, rounds):
    """(seconds before, seconds after) of each round; the first run of each build is not counted."""
    for bench in (before, after):
        bench.ask(question)
    result = []
    for number in range(rounds):
        first, second = (before, after) if number % 2 == 0 else (after, before)
        seconds = {first: first.ask(question), second: second.ask(question)}
        result.append((seconds[before], seconds[after]))
    return result


def row(shape, schedule, measured):
    ratios = sorted(after / before for before, after in measured)
    before, after = (statistics.median(seconds) for seconds in zip(*measured))
    return (f"| {shape} | {schedule} | {before:.3f} | {after:.3f} | {statistics.median(ratios):.3f} "
            f"({ratios[0]:.3f}–{ratios[-1]:.3f}) |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--before", required=True, metavar="BUILD")
    parser.add_argument("--after", required=True, metavar="BUILD")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", metavar="P/R/N", default=[str(shape) for shape in shapes.SHAPES])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = models.make(os.path.join(directory, "model"), shapes.SPEC)
        benches = [StepBench(build, model, THREADS) for build in (options.before, options.after)]
        for bench in benches:
            bench.serve()
        print("| P/R/N | schedule | before s | after s | after / before |\n|---|---|---:|---:|---:|", flush=True)
        for shape in options.shapes:
            for schedule in ("dense", "reuse"):
                print(row(shape, schedule, pairs(*benches, f"{schedule} {shape}", options.rounds)), flush=True)
        for bench in benches:
            bench.close()


if __name__ == "__main__":
    main()
