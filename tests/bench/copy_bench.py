"""Two workers that compute one copy's groups together, one thread each, against one worker of two threads, through the server:
seconds of an update, in turns, and what the two exchange inside of the layers. They are tensor- or context-parallel, these also
with sharded parameters, or stages of a pipeline.

    third_party/venv/bin/python tests/bench/copy_bench.py --build build/release [--rounds 5] [--experts]

Part of `make bench`. The servers that are compared are there all the time, and the one that is not asked waits."""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests")]

import dp_bench  # noqa: E402
import shapes  # noqa: E402
import stemma  # noqa: E402
from dp_bench import Case, median, phases_s, step_s  # noqa: E402

TITLE = "Tensor, context and pipeline parallelism, sharded parameters"
# run.yaml's keys, and what the metrics of the exchanges are named after.
ALONE, SHARDED = "one worker", "mesh: {cp: 2}\nprefix_kv: hold\nthreads: 1\nshard_parameters: on\n"
WAYS = {ALONE: ("threads: 2", None), "tp=2": ("mesh: {tp: 2}\nthreads: 1", "tensor_parallel"),
        "cp=2, hold": ("mesh: {cp: 2}\nprefix_kv: hold\nthreads: 1", "context_parallel"),
        "cp=2, regather": ("mesh: {cp: 2}\nprefix_kv: regather\nthreads: 1", "context_parallel"),
        "pp=2": ("mesh: {pp: 2}\nthreads: 1", "pipeline"),
        "cp=2, sharded, sweep": (SHARDED + "reduce_gradients: sweep", "parameters"),
        "cp=2, sharded, step": (SHARDED + "reduce_gradients: step", "parameters")}
# For a mixture of experts: a rank has columns of each, or whole ones.
WAYS_OF_EXPERTS = {ALONE: WAYS[ALONE], "tp=2": WAYS["tp=2"],
                   "tp=2,ep=2": ("mesh: {tp: 2, ep: 2}\nthreads: 1", "tensor_parallel")}
# One group: what data parallelism could only split, and these divide as any other. One rollout: cp cuts its rows.
CASES = (Case("1 × 512/1536/1", ((512, 1536, 1),)), Case("1 × 1024/256/8", ((1024, 256, 8),)), Case("1 × 2048/128/16", ((2048, 128, 16),)),
         Case("4 × 512/512/4", ((512, 512, 4),) * 4))


def measure(build, directory, rounds, cases=CASES, ways=WAYS):
    """{case: {way: [metrics of each round]}}"""
    binary, result = pathlib.Path(build) / "bin" / "stemma", {}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients = {}
        for number, (way, (keys, _)) in enumerate(ways.items()):
            config = folder / f"{number}.yaml"
            config.write_text(f"model: {directory}\n{keys}\n")
            server = stack.enter_context(stemma.LocalServer(directory, binary=binary, config=config))
            clients[way] = stack.enter_context(stemma.Client(server.address))
        for case in cases:
            times = result[case.name] = dp_bench.in_turns(clients, dp_bench.groups_of(case), rounds)
            print(f"{case.name}: " + "  ".join(f"{way} {[round(step_s(m), 2) for m in steps]} s" for way, steps in times.items()), flush=True)
    return result


def table(result, ways=WAYS):
    yield ("| groups × P/R/N | two ranks | one worker s | two ranks s | speed of one | phases s | in exchanges s | sent by both MB "
           "| peak MB of a rank | state MB of a rank |")
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, times in result.items():
        for way, (_, axis) in ways.items():
            if axis is not None:
                yield row(name, way, axis, times[ALONE], times[way])


def row(name, way, axis, one, two):
    ratios = [step_s(a) / step_s(b) for a, b in zip(one, two)]

    def megabytes(steps, metric):
        return median(steps, lambda metrics: metrics.get(metric, 0)) / 1e6

    return (f"| {name} | {way} | {median(one, step_s):.2f} | {median(two, step_s):.2f} | {statistics.median(ratios):.1%} "
            f"({min(ratios):.1%}–{max(ratios):.1%}) | {median(two, phases_s):.2f} ({median(one, phases_s):.2f}) | "
            f"{median(two, lambda m: m.get(f'time/{axis}_s', 0)):.2f} | {megabytes(two, f'ranks/{axis}_bytes'):.1f} | "
            f"{megabytes(two, 'plan/measured_bytes'):.0f} ({megabytes(one, 'plan/measured_bytes'):.0f}) | "
            f"{megabytes(two, 'measured/state_bytes'):.0f} ({megabytes(one, 'measured/state_bytes'):.0f}) |")


def section(build, directory, rounds):
    yield "One optimizer step through the server: two ranks of one copy, one thread each, by tp, cp or pp, and one worker of two threads (in"
    yield "brackets where both have a number), in turns. The ranks are processes on one machine: what they exchange goes"
    yield "through its memory. Exchanges are those of the axis, of sharded parameters those of weights and their gradients alone."
    yield ""
    yield from table(measure(build, directory, rounds))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build" / "release"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--experts", action="store_true", help="of a mixture of experts, with columns of each or whole ones a rank")
    arguments = parser.parse_args()
    from oracle import models  # brings torch

    with tempfile.TemporaryDirectory() as scratch:
        spec, ways = shapes.SPEC, WAYS
        if arguments.experts:  # as many columns for each row as the other has
            spec, ways = dataclasses.replace(spec, family="qwen3_moe", ffn=spec.ffn // 4, experts=16, per_token=4), WAYS_OF_EXPERTS
        directory = models.make(os.path.join(scratch, "model"), spec)
        print("\n".join(table(measure(arguments.build, directory, arguments.rounds, CASES, ways), ways)))


if __name__ == "__main__":
    main()
