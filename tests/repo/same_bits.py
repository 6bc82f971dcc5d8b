#!/usr/bin/env python3
"""Shows that two builds train to the same bits: the proof of a change that only moves code.

    git worktree add ../before HEAD~1 && make -C ../before build
    third_party/venv/bin/python tests/repo/same_bits.py --old ../before/build/release --new build/release

Each case (same_bits_cases.py) starts `stemma local` of either build, asks it for the plan of a trace's first request and for
log-probs, replays the trace, and exports the weights in float64. Compared are the exported tensors bit by bit, and every
number of the plan, of the log-probs and of each step's metrics that does not measure time. One line a case; where weights
differ, it says by how much. Exit status: 0 where all is the same, 1 where something differs, 2 for wrong use.
"""

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "examples" / "grpo"), str(ROOT / "tests")]

from repo import same_bits_cases  # noqa: E402
from stemma.local import LocalServer  # noqa: E402

# Numbers that measure time, or depend on when a copy ended. Ids of a run differ each time.
_TIMES = ["*seconds", "*/seconds/*", "*_s", "*/time_per_step", "*/tflops", "*/throughput", "*lineage", "*/rates/from",
          "*offload/waits", "*offload/demand_loads"]
# With offload the tape may use headroom for as long as its copies take.
_TIMES_OF_OFFLOAD = ["*measured/*_bytes", "*plan/measured_bytes"]
# The prediction is made from rates that learn from measured seconds.
_PREDICTED_FROM_MEASURED = ["steps/*/predicted/*_s"]
_DECIDED_BEFORE_ANY_STEP = "plan/*"


class _Server(LocalServer):
    """Serves a build from before --die-with-parent, too."""

    def _start(self, command):
        known = subprocess.run([command[0], "local", "--help"], capture_output=True, text=True, check=True).stdout
        return super()._start([part for part in command if part != "--die-with-parent" or part in known])


@dataclasses.dataclass
class Outcome:
    """What one build made of one case."""

    weights: dict  # name -> array
    numbers: dict  # path such as "steps/3/metrics/actor/loss" -> value


def flatten(value, path=""):
    """Every leaf of JSON by its path."""
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    else:
        return {path: value}
    found = {}
    for key, item in pairs:
        found.update(flatten(item, f"{path}/{key}" if path else str(key)))
    return found


def is_time(path, offload):
    if fnmatch.fnmatchcase(path, _DECIDED_BEFORE_ANY_STEP) and not path.endswith("rates/from"):
        return False
    patterns = _TIMES + _PREDICTED_FROM_MEASURED + (_TIMES_OF_OFFLOAD if offload else [])
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def differing_numbers(old, new, offload, ignored=()):
    """Paths whose values differ, or that only one of the two has."""
    def compared(path):
        return not is_time(path, offload) and not any(fnmatch.fnmatchcase(path, pattern) for pattern in ignored)
    missing = object()
    return sorted(path for path in old.keys() | new.keys() if compared(path) and
                  repr(old.get(path, missing)) != repr(new.get(path, missing)))


def differing_weights(old, new):
    """{tensor: largest difference by the tensor's largest value} of those whose bits differ."""
    found = {name: float("inf") for name in old.keys() ^ new.keys()}
    for name in old.keys() & new.keys():
        a, b = old[name], new[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            found[name] = float("inf")
        elif a.tobytes() != b.tobytes():
            scale = float(np.abs(a).max())
            found[name] = float(np.abs(a - b).max()) / scale if scale else float("inf")
    return found


def without_ids(report):
    """A step's numbers by its place in the replay."""
    return {"steps": report["steps"], "tokens_computed": report["tokens_computed"]}


class Build:
    def __init__(self, folder):
        self.stemma = pathlib.Path(folder).resolve() / "bin" / "stemma"
        if not self.stemma.is_file():
            raise SystemExit(f"same_bits: {self.stemma} is not there; give the folder of a build, such as build/release")

    def _json(self, *argv):
        """What a command prints as one JSON object a line."""
        done = subprocess.run([self.stemma, *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, argv))} exited with {done.returncode}:\n{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def run(self, case, model, trace, folder):
        folder.mkdir(parents=True)
        config = folder / "run.yaml"
        config.write_text("".join(f"{key}: {value}\n" for key, value in case.config), encoding="utf-8")
        with _Server(model, binary=self.stemma, config=config, threads=case.threads, log=folder / "log",
                     data=folder / "data") as server:
            at = ("--server", server.address)
            plan = self._json("plan", trace, "--verbose", "-o", "json", *at)
            log_probs = self._json("logprob", trace, "-o", "json", *at)
            report = folder / "report.json"
            self._json("replay", trace, "--report", report, "-o", "json", *at)
            self._json("export", "weights", "--dtype", "fp64", "-o", "json", *at)
        weights = {}
        for path in sorted((folder / "data" / "exports" / "weights").glob("*.safetensors")):
            weights.update(load_file(path))
        numbers = flatten({"plan": plan, "log_probs": log_probs, **without_ids(json.loads(report.read_text()))})
        shutil.rmtree(folder)
        return Outcome(weights, numbers)


class Inputs:
    """Models and traces, made once with the old build."""

    def __init__(self, build, folder):
        self._build, self._folder = build, folder

    def model(self, name):
        path = self._folder / f"model-{name}"
        if not path.exists():
            if name == "example":
                from policy import make_start_model
                make_start_model(str(self._build.stemma), path, 0)
            else:
                subprocess.run([self._build.stemma, "model", "init", path, *same_bits_cases.MODELS[name]], check=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return path

    def trace(self, name):
        if name == "example":
            return same_bits_cases.EXAMPLE_TRACE
        path = self._folder / f"{name}.jsonl"
        if not path.exists():
            same_bits_cases.write_trace(name, path)
        return path


def compare(case, builds, inputs, folder, ignored):
    """(whether all is the same, the case's line)."""
    model, trace = inputs.model(case.model), inputs.trace(case.trace)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        old, new = pool.map(lambda pair: pair[1].run(case, model, trace, folder / f"{pair[0]}"), enumerate(builds))
    offload = dict(case.config).get("offload") == "on"
    return judged(case.name, old, new, offload, ignored)


def judged(name, old, new, offload, ignored=()):
    weights, numbers = differing_weights(old.weights, new.weights), differing_numbers(old.numbers, new.numbers, offload, ignored)
    if not old.weights or not any(path.startswith("steps/0/") for path in old.numbers):
        raise RuntimeError(f"{name}: nothing was trained, so that nothing can differ")
    told = [f"{len(old.weights)} tensors: the same bits" if not weights else
            f"{len(weights)} of {len(old.weights)} tensors differ by {max(weights.values()):.1e}"]
    told.append(f"{len(old.numbers)} numbers: the same" if not numbers else f"{len(numbers)} numbers differ: " +
                ", ".join(f"{path} ({old.numbers.get(path)} -> {new.numbers.get(path)})" for path in numbers[:4]) +
                (", ..." if len(numbers) > 4 else ""))
    return not weights and not numbers, f"{name:40} {'; '.join(told)}"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True, metavar="BUILD", help="the build before the change")
    parser.add_argument("--new", required=True, metavar="BUILD", help="the build after it")
    parser.add_argument("--only", action="append", metavar="WORDS", help="cases whose name holds this; repeatable")
    parser.add_argument("--except", action="append", default=[], dest="ignored", metavar="PATTERN",
                        help="numbers that the change is meant to change, such as '*predicted_bytes'; repeatable")
    parser.add_argument("--list", action="store_true", help="print the cases and run nothing")
    return parser.parse_args()


def main():
    options = arguments()
    chosen = [case for case in same_bits_cases.cases() if not options.only or any(word in case.name for word in options.only)]
    if options.list or not chosen:
        print("\n".join(case.name for case in chosen) or "no case has these words in its name")
        return 0 if chosen else 2
    builds = [Build(options.old), Build(options.new)]
    os.environ.pop("STEMMA_SERVER", None)
    same = 0
    with tempfile.TemporaryDirectory(prefix="stemma-same-bits-") as scratch:
        inputs = Inputs(builds[0], pathlib.Path(scratch))
        for case in chosen:
            good, text = compare(case, builds, inputs, pathlib.Path(scratch) / "run", options.ignored)
            same += good
            print(text, flush=True)
    print(f"{same} of {len(chosen)} cases are the same bits" +
          (f"; not compared: {', '.join(options.ignored)}" if options.ignored else ""))
    return 0 if same == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
