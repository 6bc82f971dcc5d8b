"""Runs libFuzzer's programs of tests/fuzz, built by the fuzz preset, and says what each did.

make fuzz                                                 a minute each
make fuzz ARGS="--seconds 600 --target trace"             one of them, for ten minutes

What it learns of inputs stays in BUILD/corpus, and a later run goes on from there; an input that ends a program is kept in
BUILD/found, and the command that repeats it is printed. Before the others a control runs: the rows of the journal with a
mistake that is compiled in. Where the control finds none, nothing else here would.

Exit status: 0 if no input ended a program, 1 if one did, or the control found nothing, 2 for wrong use."""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTROL = "control"
CONTROL_SECONDS = 60  # at the most: it ends at the first input that shows the mistake

# One input may take so many seconds and MiB, and have so many bytes: each kind of input is met within them.
LIMITS = ("-timeout=25", "-rss_limit_mb=3072", "-max_len=16384")

Run = collections.namedtuple("Run", "target ended log")


def targets():
    return sorted(path.name.removesuffix("_fuzz.cc") for path in (ROOT / "tests" / "fuzz").glob("*_fuzz.cc"))


def folder_in_memory():
    """For the files that targets write, thousands in a second."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run(build, target, seconds):
    program = build / "fuzz" / f"{target}_fuzz"
    corpus, found = build / "corpus" / target, build / "found"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder_in_memory()) as scratch:
        environment = os.environ | {"TMPDIR": scratch}
        subprocess.run([program, f"--write-seeds={corpus}"], env=environment, check=True)
        command = [program, f"-max_total_time={seconds}", f"-artifact_prefix={found}/{target}-", "-print_final_stats=1",
                   *LIMITS, corpus]
        done = subprocess.run(command, env=environment, check=False, text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
    return Run(target, done.returncode, done.stdout)


def summary(result):
    """One line: how much was tried, and whether something was found."""
    covered = re.findall(r"cov: (\d+)", result.log)
    runs = re.search(r"stat::number_of_executed_units: (\d+)", result.log)
    return (f"{result.target:16} {runs[1] if runs else '?':>9} inputs, {covered[-1] if covered else '?':>6} edges"
            f"{', ENDED BY AN INPUT' if result.ended else ''}")


def control_problem(result):
    """Why the control does not show that mistakes are found; nothing where it does."""
    if not result.ended:
        return f"the control's mistake was not found in {CONTROL_SECONDS} s"
    return "" if "AddressSanitizer: global-buffer-overflow" in result.log else "the control ended for another reason"


def fuzz(build, chosen, seconds, jobs):
    control = run(build, CONTROL, CONTROL_SECONDS)
    problems = [problem + ":\n" + control.log[-3000:] for problem in [control_problem(control)] if problem]
    print(f"{CONTROL:16} {'NOT FOUND' if problems else 'found, as it must be'}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(lambda target: run(build, target, seconds), chosen):
            print(summary(result), flush=True)
            if result.ended:
                again = re.findall(r"Test unit written to (\S+)", result.log)
                command = f"{build / 'fuzz' / (result.target + '_fuzz')} {again[-1] if again else '?'}"
                problems.append(f"{result.log[-6000:]}\n{result.target}: again: {command}")
    return problems


def main(arguments):
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--target", choices=targets(), action="append", help="this one alone; may be given again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at a time")
    options = parser.parse_args(arguments)
    if options.seconds < 1 or options.jobs < 1:
        parser.error("--seconds and --jobs are at least 1")
    problems = fuzz(options.build.resolve(), options.target or targets(), options.seconds, options.jobs)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
