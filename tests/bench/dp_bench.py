"""Two workers of one thread against one worker of two threads, and a hot group split between the two against whole,
through the server: seconds of an update, in turns.

    third_party/venv/bin/python tests/bench/dp_bench.py --build build/release [--rounds 5]

Part of `make bench`. The servers that are compared are there all the time, and the one that is not asked waits."""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import random
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests")]

import page  # noqa: E402
import shapes  # noqa: E402
import stemma  # noqa: E402

TITLE = "Data parallelism"
RANKS = 2
SPEED = 0.93  # of one worker with as many threads: the target


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    groups: tuple  # (prompt, response, count) of each


CASES = (
    Case("2 × 1024/256/8", ((1024, 256, 8),) * 2),
    Case("2 × 2048/128/16", ((2048, 128, 16),) * 2),
    Case("8 × 512/512/4", ((512, 512, 4),) * 8),
    Case("16 × 64…2048/32…512/2…12, drawn", tuple(
        (rng.randint(64, 2048), rng.randint(32, 512), rng.randint(2, 12)) for rng in [random.Random(5)] for _ in range(16))),
)


# Between two ranks a group is hot that has more than half of the work.
HOT = Case("1 × 512/256/24 and 2 × 512/256/4", ((512, 256, 24), (512, 256, 4), (512, 256, 4)))


def groups_of(case):
    rng = random.Random(1)

    def tokens(count):
        return [rng.randrange(shapes.SPEC.vocab) for _ in range(count)]

    return [stemma.Group(f"g{i}", tokens(prompt), [stemma.Rollout(tokens(response), advantage=rng.uniform(-1, 1))
                                                   for _ in range(count)])
            for i, (prompt, response, count) in enumerate(case.groups)]


def update(client, groups):
    """The metrics of one step."""
    return client.update_actor(groups, loss=stemma.grpo(), adam=stemma.adamw(1e-6), old="on_policy").steps[0].metrics


def in_turns(clients, groups, rounds):
    """{client's name: [metrics of each round]}"""
    times = {name: [] for name in clients}
    for turn in range(rounds + 1):
        for name in clients if turn % 2 == 0 else reversed(clients):
            metrics = update(clients[name], groups)
            if turn > 0:  # the first warms up
                times[name].append(metrics)
    return times


def measure_split(build, directory, rounds, case=HOT):
    """{"off" or "auto": [metrics of each round]} of two workers of one thread"""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients = {}
        for split in ("off", "auto"):
            (folder / f"{split}.yaml").write_text(f"model: {directory}\nmesh: {{dp: {RANKS}}}\nthreads: 1\nsplit_groups: {split}\n")
            server = stack.enter_context(stemma.LocalServer(directory, binary=pathlib.Path(build) / "bin" / "stemma",
                                                            config=folder / f"{split}.yaml"))
            clients[split] = stack.enter_context(stemma.Client(server.address))
        times = in_turns(clients, groups_of(case), rounds)
    print(f"split of a hot group, {case.name}: " + "  ".join(f"{split} {[round(step_s(m), 2) for m in steps]} s"
                                                              for split, steps in times.items()), flush=True)
    return times


def split_table(times, case=HOT):
    yield "| split of a hot group | whole s | split s | sooner by |"
    yield "|---|---:|---:|---:|"
    ratios = [step_s(off) / step_s(auto) for off, auto in zip(times["off"], times["auto"])]
    yield (f"| {case.name} | {median(times['off'], step_s):.2f} | {median(times['auto'], step_s):.2f} | "
           f"{statistics.median(ratios):.2f} × ({min(ratios):.2f}–{max(ratios):.2f}) |")


def measure(build, directory, rounds, cases=CASES):
    """{case: {workers: [metrics of each round]}}"""
    binary, result = pathlib.Path(build) / "bin" / "stemma", {}
    with contextlib.ExitStack() as stack:
        clients = {}
        for workers in (1, RANKS):
            server = stack.enter_context(stemma.LocalServer(directory, binary=binary, threads=RANKS // workers, workers=workers))
            clients[workers] = stack.enter_context(stemma.Client(server.address))
        for case in cases:
            times = result[case.name] = in_turns(clients, groups_of(case), rounds)
            print(f"{case.name}: " + "  ".join(f"{workers} worker(s) {[round(step_s(m), 2) for m in steps]} s"
                                               for workers, steps in times.items()), flush=True)
    return result


def step_s(metrics):
    return metrics["perf/actor/time_per_step"]


def phases_s(metrics):
    return sum(metrics[f"time/{phase}_s"] for phase in ("prefix_forward", "suffix", "prefix_backward"))


def median(steps, value):
    return statistics.median(value(metrics) for metrics in steps)


def speeds(times):
    """What part of one worker's speed two have, of each round's pair."""
    return [step_s(one) / step_s(two) for one, two in zip(times[1], times[RANKS])]


def table(result):
    yield "| groups × P/R/N | one worker s | two workers s | speed of one | phases s | APPLY s | fastest rank s | wait s | reduction s | beside the backward s |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, times in result.items():
        two, ratios = times[RANKS], speeds(times)
        yield (f"| {name} | {median(times[1], step_s):.2f} | {median(two, step_s):.2f} | {statistics.median(ratios):.1%} "
               f"({min(ratios):.1%}–{max(ratios):.1%}) | {median(two, phases_s):.2f} ({median(times[1], phases_s):.2f}) | "
               f"{median(two, lambda m: m['time/apply_s']):.3f} ({median(times[1], lambda m: m['time/apply_s']):.3f}) | "
               f"{median(two, lambda m: m['time/fastest_rank_s']):.2f} | "
               f"{median(two, lambda m: m['time/slowest_rank_s'] - m['time/fastest_rank_s']):.3f} | "
               f"{median(two, lambda m: m['time/reduce_s']):.3f} | {median(two, lambda m: m['time/reduce_overlapped_s']):.3f} |")


def verdicts(result):
    """[(text, met)]"""
    return [(f"{name}: two workers of one thread have {statistics.median(speeds(times)):.1%} of the speed of one worker of two "
             f"(target {SPEED:.0%})", statistics.median(speeds(times)) >= SPEED) for name, times in result.items()]


def section(build, directory, rounds):
    result, split = measure(build, directory, rounds), measure_split(build, directory, rounds)
    yield "One optimizer step through the server: two workers of one thread each, and one worker of two threads (in brackets"
    yield "where both have a number), in turns. Phases are of each the slowest rank's, and may add up to more than the step; the wait is the fastest one's."
    yield ""
    yield from table(result)
    yield ""
    yield from split_table(split)
    yield ""
    yield from page.verdict_lines(verdicts(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build" / "release"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--split-only", action="store_true", help="measure the split of a hot group alone")
    arguments = parser.parse_args()
    from oracle import models  # brings torch

    with tempfile.TemporaryDirectory() as scratch:
        directory = models.make(os.path.join(scratch, "model"), shapes.SPEC)
        result = measure(arguments.build, directory, arguments.rounds) if not arguments.split_only else {}
        split = measure_split(arguments.build, directory, arguments.rounds)
    print("\n".join([*table(result), "", *split_table(split)]))
    for text, met in verdicts(result):
        print(f"{'met' if met else 'missed'}: {text}")


if __name__ == "__main__":
    main()
