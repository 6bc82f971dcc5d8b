"""Applies the mutants one after the other in a scratch copy, builds what each needs, and runs the tests that must kill it.

make mutants                                    every mutant
make mutants ARGS="cost_model server/planner"      those whose name, file or table file holds one of the words
make mutants ARGS="--shard 2/4"                 the second quarter; shards are cut by file, so that each builds less
make mutants ARGS="--sample 20 --seed 7"        twenty by chance

Exit status: 0 if every mutant did what the table says, 1 if one survived, did not build, was not judged or did not do so, 2 for
wrong use."""

import argparse
import dataclasses
import json
import pathlib
import random
import re
import signal
import sys
import time

import table
from scratch import ROOT, Scratch

_CONTROL = "control.toml"  # its mutants run with every selection


@dataclasses.dataclass
class Result:
    mutant: table.Mutant
    verdict: str  # killed, SURVIVED, did not build, not judged
    seconds: float
    detail: str = ""
    by: str = ""  # the first test that failed, by its own name

    def as_listed(self):
        """Whether the table says so too."""
        return self.verdict == ("SURVIVED" if self.mutant.survives else "killed")


def choose(mutants, words, shard, sample, seed):
    """The selection by words, then by chance, then the shard; ordered by file."""
    def holds(mutant):
        return any(word in part for word in words for part in (mutant.name, mutant.file, mutant.table))
    controls = [m for m in mutants if m.table == _CONTROL]
    chosen = [m for m in mutants if m.table != _CONTROL and (not words or holds(m))]
    if sample is not None:
        chosen = random.Random(seed).sample(chosen, min(sample, len(chosen)))
    chosen.sort(key=lambda m: (m.file, m.table, m.name))
    if shard:
        part, parts = shard
        chosen = chosen[len(chosen) * (part - 1) // parts:len(chosen) * part // parts]
    return controls + chosen


def command_of(test, selector, read):
    """The command of one entry, narrowed to `selector`: by gtest's filter, pytest's -k or unittest's name. read(path) gives
    the text of a Python file."""
    command = list(test[0])
    if not selector:
        return command
    if "pytest" in command:
        # Files that hold none of the tests would only cost their imports.
        holds = re.compile("|".join(rf"def {re.escape(name)}\b" for name in selector.split(":")))
        command = [part for part in command if not part.endswith("_test.py") or holds.search(read(part))]
        return command + ["-k", " or ".join(selector.split(":"))]
    if command[-1].endswith(".py"):
        return command + selector.split(":")
    return command + [f"--gtest_filter={selector}"]


def targets_of(mutant, ctest):
    """What the mutant's verdict needs built. Python entries are no targets."""
    names = {test.partition("::")[0] for test in mutant.tests}
    return set(mutant.targets) | {name for name in names if not is_python(ctest.get(name))}


def is_python(entry):
    return entry is not None and entry[0] is not None and "python" in pathlib.Path(entry[0][0]).name


class Session:
    """One run of the command."""

    def __init__(self, scratch, mutants):
        self._scratch, self._mutants = scratch, mutants
        self._ctest, self._limits, self._failing = {}, {}, set()

    def prepare(self):
        """Builds everything unmutated and runs each test that the selection names once: one that does not pass, or runs
        nothing, judges no mutant."""
        self._scratch.copy_checkout()
        self._scratch.configure()
        self._ctest = self._scratch.tests()
        targets = set().union(*(targets_of(m, self._ctest) for m in self._mutants))
        print(f"building {len(targets)} targets unmutated", flush=True)
        built, output = self._scratch.build(targets)
        if not built:
            raise SystemExit(f"the unmutated tree does not build:\n{output[-4000:]}")
        self._ctest = self._scratch.tests()
        tests = sorted({test for mutant in self._mutants for test in mutant.tests})
        print(f"running {len(tests)} tests unmutated", flush=True)
        for test in tests:
            status, output, seconds = self._run(test, None)
            if status != 0 or "[  PASSED  ] 0 tests" in output:
                self._failing.add(test)
                print(f"{test} does not pass, or runs nothing, on the unmutated tree:\n{output[-4000:]}", flush=True)
            self._limits[test] = 60 + 10 * seconds  # a mutant that hangs is killed by time

    def _run(self, test, limit_s):
        name, _, selector = test.partition("::")
        entry = self._ctest[name]
        return self._scratch.run_test(command_of(entry, selector, self._scratch.read), entry[1], entry[2], limit_s or entry[3])

    def judge(self, mutant):
        begin = time.monotonic()
        if failing := sorted(self._failing.intersection(mutant.tests)):
            return Result(mutant, "not judged", 0.0, ", ".join(failing))
        text = self._scratch.read(mutant.file)
        self._scratch.write(mutant.file, mutant.applied(text))
        try:
            built, output = self._scratch.build(targets_of(mutant, self._ctest))
            if not built:
                return Result(mutant, "did not build", time.monotonic() - begin, output[-2000:])
            runs = {test: self._run(test, self._limits[test]) for test in mutant.tests}
        finally:
            self._scratch.write(mutant.file, text)
        alive = [test for test, (status, *_) in runs.items() if status == 0]
        verdict = "SURVIVED" if alive else "killed"
        return Result(mutant, verdict, time.monotonic() - begin, f"passed: {', '.join(alive)}" if alive else "",
                      killer_of(*next(iter(runs.values()))[:2]))


def killer_of(status, output):
    """What ended the mutant: the first test that failed, else how the process ended."""
    if status is None:
        return "it did not end"
    found = re.search(r"^\[  FAILED  \] ([\w/.]+)|^FAILED \S+::(\w+)|^(?:FAIL|ERROR): (\w+)", output, re.M)
    if found:
        return next(name for name in found.groups() if name)
    running = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    return f"{running[-1]} crashed" if running else f"exit status {status}"


def line(result):
    mutant = result.mutant
    listed = f"  ({mutant.survives})" if mutant.survives and result.verdict == "SURVIVED" else ""
    wrong = "" if result.as_listed() else "  <-- " + {
        "killed": f"listed as a survivor ({mutant.survives}): take `survives` away",
        "SURVIVED": f"{result.detail}; {mutant.breaks}",
        "did not build": f"mend it in {mutant.table}",
        "not judged": f"{result.detail} must pass on the unmutated tree"}[result.verdict]
    by = f"  by {result.by}" if result.verdict == "killed" else ""
    return f"{mutant.name:44} {mutant.file:40} {result.verdict:13} {result.seconds:6.1f} s{by}{listed}{wrong}"


def summary(results):
    """The counts, and whether all is as listed."""
    killed = sum(r.verdict == "killed" for r in results)
    alive = [r for r in results if r.verdict == "SURVIVED"]
    equivalent = sum(r.mutant.survives.startswith("equivalent") for r in alive)
    broken = sum(r.verdict == "did not build" for r in results)
    judged = killed + len(alive) - equivalent
    text = (f"{len(results)} mutants: {killed} killed, {len(alive)} survived ({equivalent} equivalent), {broken} did not build, "
            f"{len(results) - killed - len(alive) - broken} not judged; "
            f"{100 * killed / max(1, judged):.1f} % of the {judged} that are not equivalent died")
    return text, all(r.as_listed() for r in results)


def shard_of(text):
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard; write 2/4 for the second of four")
    return int(part), int(parts)


def arguments():
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts of names, of source files or of table files; none takes all")
    parser.add_argument("--shard", type=shard_of, metavar="I/N", help="the I-th of N parts")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants by chance")
    parser.add_argument("--seed", type=int, help="of the sample; without it one is drawn and printed")
    parser.add_argument("--list", action="store_true", help="print the selection and run nothing")
    parser.add_argument("--preset", default="release", help="of the scratch build (%(default)s)")
    parser.add_argument("--scratch", default=str(ROOT / "build" / "mutants"), help="the copy's folder (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="of each build (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    return parser.parse_args()


def main():
    options = arguments()
    # A shell's background job ignores SIGINT; the tests would inherit that, and some send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    mutants, problems = table.read()
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    chosen = choose(mutants, options.words, options.shard, options.sample, seed)
    if options.sample is not None:
        print(f"seed {seed}")
    if not any(mutant.table != _CONTROL for mutant in chosen):
        print("no mutant is selected; --list without words prints all", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{m.name:44} {m.file:40} {m.breaks}" for m in chosen))
        return 0
    session = Session(Scratch(options.scratch, options.preset, options.jobs), chosen)
    session.prepare()
    results = []
    for mutant in chosen:
        results.append(session.judge(mutant))
        print(line(results[-1]), flush=True)
        if results[-1].verdict == "did not build":
            print(results[-1].detail, flush=True)
    text, good = summary(results)
    print(text)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(
            [{"name": r.mutant.name, "file": r.mutant.file, "verdict": r.verdict, "seconds": round(r.seconds, 1),
              "by": r.by, "listed": r.mutant.survives} for r in results], indent=1) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
