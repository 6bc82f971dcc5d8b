"""Runs the tests that draw their cases from a seed, with fresh seeds, until one fails or the rounds are over.

make soak                                       20 rounds of each
make soak ARGS="--only bytes --rounds 100"      one of them
make soak ARGS="--only bytes --seed 7"          one round of that one with this seed: what a failure says to type
make soak FAULTS=1000 SEED=7                    so many faults that strike server and ranks, from this seed on; SEED may be left out

Exit status: 0 if all passed, 1 if one failed, 2 for wrong use."""

import argparse
import dataclasses
import os
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEDS = range(1, 100_000)  # googletest takes no others


@dataclasses.dataclass(frozen=True)
class Entry:
    name: str
    draws: str  # what
    command: tuple  # {seed}, {build} and {python} stand for theirs
    environment: tuple = ()  # (name, value), likewise
    faults: int = 0  # that a round strikes; 0: another kind of test


TABLE = (
    Entry("bytes", "models, requests and memory settings: predicted against measured bytes",
          ("{build}/tests/random_bytes_test", "--gtest_brief=1", "--gtest_random_seed={seed}")),
    Entry("state", "models and meshes: predicted against measured bytes of their state",
          ("{build}/tests/phase_bytes_test", "--gtest_brief=1", "--gtest_filter=StateBytesOfDrawnRanksTest.*",
           "--gtest_random_seed={seed}")),
    Entry("sent", "ranks of a copy: predicted against counted bytes that they send, to the byte",
          ("{build}/tests/sent_bytes_test", "--gtest_brief=1", "--gtest_random_seed={seed}")),
    Entry("meshes", "models, meshes and requests: gradients of ranks of a copy as the oracle's",
          ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/schedule/tensor_parallel_test.py",
           "-k", "have_the_gradients"),
          (("STEMMA_SEED", "{seed}"),)),
    Entry("experts", "models, meshes and requests: gradients of ranks with experts of their own as the oracle's",
          ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/schedule/expert_parallel_test.py",
           "-k", "have_the_gradients"),
          (("STEMMA_SEED", "{seed}"),)),
    Entry("rows", "models, meshes and requests: gradients of ranks that share rows as the oracle's",
          ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/schedule/context_parallel_test.py",
           "-k", "have_the_gradients"),
          (("STEMMA_SEED", "{seed}"),)),
    Entry("stages", "models, meshes, requests and orders: gradients of a pipeline's stages as the oracle's",
          ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/schedule/pipeline_test.py",
           "-k", "have_the_gradients"),
          (("STEMMA_SEED", "{seed}"),)),
    Entry("streams", "spoiled request streams: each is answered as it deserves",
          ("{python}", "tests/hostile/fuzz_streams.py", "--streams", "20000", "--seed", "{seed}")),
    Entry("requests", "requests: trained as the oracle does",
          ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/golden/random_requests_test.py"),
          (("STEMMA_GOLDEN_SEED", "{seed}"), ("STEMMA_GOLDEN_COUNT", "36"))),
    Entry("runs", "whole runs on drawn meshes and settings, killed and moved on the way: the weights of the oracle",
          ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/golden/drawn_runs_test.py", "-k", "has_the_weights"),
          (("STEMMA_RUNS_SEED", "{seed}"), ("STEMMA_RUNS_COUNT", "20"))),
    Entry("faults", "losses of a rank of two: the truth in time, and the gang serves again",
          ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/gang/gang_faults_test.py"),
          (("STEMMA_FAULTS_SEED", "{seed}"), ("STEMMA_FAULTS_COUNT", "10"))),
    Entry("places", "losses of a rank at named places of a worker: likewise",
          ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/gang/gang_places_test.py"),
          (("STEMMA_FAULTS_SEED", "{seed}"),)),
    Entry("recovery", "kills of server and workers: nothing is lost and nothing is done twice",
          ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/recovery/recovery_test.py", "-k", "struck"),
          (("STEMMA_FAULTS_SEED", "{seed}"), ("STEMMA_FAULTS_COUNT", "20"))),
    Entry("table", "server and ranks that are struck at named places, kept requests: likewise",
          ("{python}", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/e2e/recovery/places_test.py", "-k", "case"),
          (("STEMMA_FAULTS_SEED", "{seed}"), ("STEMMA_FAULTS_COUNT", "50")), faults=100),  # 50 each of one rank and of two
    Entry("cuts", "hosts that are cut off at such places: likewise; needs root, for network namespaces",
          ("{python}", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/e2e/gang/gang_cut_test.py"),
          (("STEMMA_FAULTS_SEED", "{seed}"),)),
)


def run(entry, seed, build):
    """Its exit status."""
    def filled(text):
        return text.format(seed=seed, build=build, python=sys.executable)
    environment = {"STEMMA_BUILD_DIR": str(build), "PYTHONPATH": f"{ROOT}/client/python:{ROOT}/tests",
                   "PYTHONDONTWRITEBYTECODE": "1", **{name: filled(value) for name, value in entry.environment}}
    command = [filled(part) for part in entry.command]
    print(" ".join([f"{name}={filled(value)}" for name, value in entry.environment] + command), flush=True)
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=False).returncode


def soak(entries, rounds, seeds, build):
    """True if every round passed; seeds() draws one."""
    for number in range(1, rounds + 1):
        for entry in entries:
            seed = seeds()
            print(f"round {number} of {rounds}, {entry.name}, seed {seed}:", flush=True)
            if status := run(entry, seed, build):
                print(f'failed with exit status {status}; again: make soak ARGS="--only {entry.name} --seed {seed}"')
                return False
    return True


def strike(entry, faults, seed, build):
    """Rounds of an entry, each with the seed after the one before, until at least so many faults were struck. True if all passed."""
    begun, struck = time.monotonic(), 0
    while struck < faults:
        passed = soak([entry], 1, lambda: seed, build)
        if passed:
            struck += entry.faults
        seed = seed % SEEDS[-1] + 1
        print(f"{struck} faults in {time.monotonic() - begun:.0f} s: no step was lost and none was made twice", flush=True)
        if not passed:
            return False
    return True


def main(arguments, table=TABLE):
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter,
                                     epilog="\n".join(f"{entry.name:10} {entry.draws}" for entry in table))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, default=None, help="of each; 20, with --seed 1")
    parser.add_argument("--only", choices=[entry.name for entry in table], help="this one alone")
    parser.add_argument("--seed", type=int, default=None, help=f"{SEEDS[0]} to {SEEDS[-1]}, for every round; needs --only, or --faults")
    parser.add_argument("--faults", type=int, default=None, help="instead of rounds: so many at least, struck by `table`")
    options = parser.parse_args(arguments)
    if options.seed is not None and ((options.only or options.faults) is None or options.seed not in SEEDS):
        parser.error(f"--seed {options.seed}: give --only NAME or --faults too, and a seed from {SEEDS[0]} to {SEEDS[-1]}")
    if options.faults is not None and (options.faults < 1 or options.only or options.rounds is not None):
        parser.error(f"--faults {options.faults}: give at least 1, and neither --only nor --rounds")
    rounds = options.rounds if options.rounds is not None else 20 if options.seed is None else 1
    if rounds < 1:
        parser.error(f"--rounds {rounds}: give at least 1")
    draw = random.SystemRandom()
    if options.faults is not None:
        (entry,) = (entry for entry in table if entry.faults)
        return 0 if strike(entry, options.faults, options.seed or draw.choice(SEEDS), options.build.resolve()) else 1
    passed = soak([entry for entry in table if options.only in (None, entry.name)], rounds,
                  lambda: options.seed or draw.choice(SEEDS), options.build.resolve())
    print(f"{rounds} rounds passed" if passed else "stopped")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
