"""Records seconds of Phases A, B and C on this machine, for the tests of the cost model:

    python tests/bench/record_phases.py --build build/release --out tests/server/planner/recorded_phases.json

One process of phase_bench runs all samples in turns, `--rounds` times or until the minutes are over; a phase's seconds are
the least of its runs, since others on the machine only add to them. The model is the benchmarks' (tests/bench/shapes.py).
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
# By shape (prompt/response/rollouts): how it is computed. "reuse" or "dense", then in any order
#   A:S1 the prefix's tape policy, B:S1 the suffixes' (S0 where not said), off: offloaded, b512: the prefix in blocks of
#   512 rows, w1: one suffix a wave (where not said, the waves are the planner's).
RECORDED = {
    "512/128/2": ["reuse", "reuse A:S1 B:S1", "reuse A:S2 B:S2", "reuse A:S4 B:S4", "reuse off", "reuse w1",
                  "reuse b128", "reuse A:S5 B:S4 b128", "dense"],
    "1000/64/2": ["reuse", "reuse A:S2", "reuse A:S1 off", "dense"],
    "256/256/2": ["reuse", "reuse B:S1", "reuse B:S3", "reuse w1", "dense", "dense B:S4"],
    "64/256/2": ["reuse", "reuse w1", "reuse A:S2 B:S2", "dense", "dense w1"],
    "128/128/4": ["reuse", "reuse w1", "reuse A:S2 B:S2 off", "dense", "dense w1", "dense B:S1"],
    "96/32/8": ["reuse", "reuse w1", "reuse w4", "dense", "dense w2"],
    "64/8/24": ["reuse", "reuse w6", "dense"],
    "1400/100/1": ["reuse", "reuse A:S1 off", "reuse b512", "dense"],
    "400/400/1": ["reuse", "reuse A:S3 B:S3", "dense", "dense B:S3"],
    "800/32/3": ["reuse", "reuse w1", "reuse A:S2 off", "reuse A:S5 b256", "dense"],
    "160/480/1": ["reuse", "reuse B:S1", "dense"],
    "300/128/3": ["reuse w1", "reuse off w1", "dense", "dense w1"],
    "700/200/1": ["reuse", "reuse A:S4 off", "dense", "dense B:S4"],
}


def sample(shape, how):
    schedule, *words = how.split()
    line = {"shape": shape, "schedule": schedule, "prefix_policy": "S0", "suffix_policy": "S0", "block_rows": 0,
            "offload": "off" in words, "wave_suffixes": 0}
    for word in words:
        if word.startswith("A:"):
            line["prefix_policy"] = word[2:]
        elif word.startswith("B:"):
            line["suffix_policy"] = word[2:]
        elif word.startswith("b"):
            line["block_rows"] = int(word[1:])
        elif word.startswith("w"):
            line["wave_suffixes"] = int(word[1:])
    return line


def record(arguments, directory):
    lines = [json.dumps(sample(shape, how)) for shape, ways in RECORDED.items() for how in ways]
    command = [os.path.join(arguments.build, "tests", "phase_bench"), "--model", directory, "--threads", str(THREADS),
               "--rounds", str(arguments.rounds), "--minutes", str(arguments.minutes)]
    answer = subprocess.run(command, check=True, input="\n".join(lines) + "\n", stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in answer.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        samples = record(arguments, models.make(os.path.join(scratch, "model"), shapes.SPEC))
    how = (f"tests/bench/record_phases.py: least of the runs of {arguments.minutes:g} minutes in turns, fp32, {THREADS} threads, "
           f"{platform.machine()}, model of tests/bench/shapes.py; seconds")
    with open(arguments.out, "w", encoding="utf-8") as out:
        out.write('{\n "how": ' + json.dumps(how) + ',\n "samples": [\n')
        out.write(",\n".join("  " + json.dumps(line) for line in samples))
        out.write("\n ]\n}\n")


if __name__ == "__main__":
    main()
