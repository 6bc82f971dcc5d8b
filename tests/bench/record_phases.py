"""Records seconds of Phases A, B and C on this machine, for the tests of the cost model:

    python tests/bench/record_phases.py --build build/release --out tests/server/core/recorded_phases.json

Each shape is run in `--rounds` processes of step_bench, by reuse and dense; a phase's seconds are the least of them, since
others on the machine only add to it. The model is the benchmarks' (tests/bench/shapes.py).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.dirname(__file__))

import shapes  # noqa: E402
from oracle import models  # noqa: E402

THREADS = 2
PHASES = {"prefix_forward": "time/prefix_forward_s", "suffix": "time/suffix_s", "prefix_backward": "time/prefix_backward_s"}
# prompt/response/rollouts, suffixes per wave (0: as the planner likes); no wave of more rows than the planner would take
RECORDED = [("1024/256/2", 0), ("2048/128/2", 0), ("512/512/2", 0), ("64/512/2", 0), ("256/256/4", 0), ("128/64/16", 0),
            ("1500/100/2", 0), ("3000/200/1", 0), ("800/800/1", 0), ("2000/64/3", 0), ("300/1000/1", 0), ("1024/32/6", 0),
            ("600/256/3", 1), ("512/128/4", 2), ("700/300/3", 2), ("1800/400/1", 0)]


def run(arguments, directory, shape, wave):
    command = [os.path.join(arguments.build, "tests", "step_bench"), "--model", directory, "--threads", str(THREADS),
               "--pairs", "1", "--shapes", shape, "--wave-suffixes", str(wave)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return json.loads(lines[-1])


def record(arguments, directory, shape, wave):
    rounds = [run(arguments, directory, shape, wave) for _ in range(arguments.rounds)]
    line = {"shape": shape, "wave_suffixes": wave}
    line.update({phase: min(r[name] for r in rounds) for phase, name in PHASES.items()})
    line["dense"] = min(r["dense_s"][0] for r in rounds)
    line["waves_reuse"], line["waves_dense"] = rounds[0]["waves_reuse"], rounds[0]["waves_dense"]
    print(line, file=sys.stderr, flush=True)
    return line


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = models.make(os.path.join(scratch, "model"), shapes.SPEC)
        samples = [record(arguments, directory, shape, wave) for shape, wave in RECORDED]
    how = (f"tests/bench/record_phases.py: least of {arguments.rounds} runs, fp32, {THREADS} threads, "
           f"{platform.machine()}, model of tests/bench/shapes.py; seconds; dense is a whole step of the dense schedule")
    with open(arguments.out, "w", encoding="utf-8") as out:
        json.dump({"how": how, "samples": samples}, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
