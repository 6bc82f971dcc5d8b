#!/usr/bin/env python3
"""Three seeds with prefix reuse and three dense, two runs at a time: do the curves overlap?

    third_party/venv/bin/python examples/grpo/compare_seeds.py --out build/grpo-seeds

Writes seeds.png and numbers.md there. A run that is there already (its log is complete) is not run again.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCHEDULES = ("reuse", "dense")
WIDTH = 20


def run(args, schedule, seed):
    """The GRPO rewards of a run, its warm rounds, its seconds."""
    out = args.out / f"{schedule}-{seed}"
    log = out / "log.jsonl"
    if not (out / "final-model").exists():
        subprocess.run([sys.executable, HERE / "grpo.py", "--seed", str(seed), "--schedule", schedule, "--steps",
                        str(args.steps), "--out", out, "--build", args.build], check=True)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {"rewards": [r["reward"] for r in rows if r["phase"] == "grpo"], "seconds": rows[-1]["seconds"],
            "tokens_computed": sum(r["tokens_computed"] for r in rows if r["phase"] == "grpo"),
            "tokens_logical": sum(r["tokens_logical"] for r in rows if r["phase"] == "grpo")}


def means(rewards):
    """Means of consecutive stretches of WIDTH rounds."""
    return [statistics.mean(rewards[i:i + WIDTH]) for i in range(0, len(rewards) - WIDTH + 1, WIDTH)]


def numbers(runs):
    lines = ["| seed | schedule | reward, first 20 rounds | last 20 rounds | rise | tokens computed of logical | seconds |",
             "|---|---|---|---|---|---|---|"]
    for (schedule, seed), r in sorted(runs.items(), key=lambda item: (item[0][1], item[0][0])):
        curve = means(r["rewards"])
        lines.append(f"| {seed} | {schedule} | {curve[0]:.3f} | {curve[-1]:.3f} | {curve[-1] - curve[0]:+.3f} | "
                     f"{r['tokens_computed']:.0f} of {r['tokens_logical']:.0f} | {r['seconds']:.0f} |")
    seeds = sorted({seed for _, seed in runs})
    by_schedule = {s: [means(runs[s, seed]["rewards"]) for seed in seeds] for s in SCHEDULES}
    between = [statistics.mean(abs(a - b) for a, b in zip(by_schedule["reuse"][i], by_schedule["dense"][i]))
               for i in range(len(seeds))]
    across = [statistics.mean(abs(a - b) for a, b in zip(by_schedule[s][i], by_schedule[s][j]))
              for s in SCHEDULES for i in range(len(seeds)) for j in range(i)]
    lines += ["", f"Mean distance of two curves (stretches of {WIDTH} rounds): reuse and dense of one seed "
              f"{statistics.mean(between):.3f}, two seeds of one schedule {statistics.mean(across):.3f}."]
    return "\n".join(lines) + "\n"


def draw(runs, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=110)
    for (schedule, seed), r in sorted(runs.items()):
        curve = means(r["rewards"])
        axes.plot([WIDTH * (i + 0.5) for i in range(len(curve))], curve, color={"reuse": "tab:blue", "dense": "tab:orange"}[schedule],
                  linestyle=["-", "--", ":"][seed % 3], marker=".", label=f"{schedule}, seed {seed}")
    axes.set(xlabel="GRPO round", ylabel=f"mean reward of {WIDTH} rounds", ylim=(0.3, 0.9))
    axes.legend(ncol=2, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "grpo-seeds")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    keys = [(schedule, seed) for seed in range(args.seeds) for schedule in SCHEDULES]
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:  # a run takes one core
        runs = dict(zip(keys, pool.map(lambda key: run(args, *key), keys)))
    text = numbers(runs)
    (args.out / "numbers.md").write_text(text)
    draw(runs, args.out / "seeds.png")
    print(text)


if __name__ == "__main__":
    main()
