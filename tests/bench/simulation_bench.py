"""Steps of `stemma simulate` against measured ones, on one machine: meshes of 4 and 8 workers of one thread over Gloo.

    third_party/venv/bin/python tests/bench/simulation_bench.py --build build/release [--rounds 3] [--meshes dp=4 ...]

Part of `make bench`. Rates of computing are those that two workers by themselves measure, one thread each and both at work, as
the workers of a mesh are; those of the networks are what the mesh's server says before its first step. Nothing is fitted to the
steps that are predicted."""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests")]

import dp_bench  # noqa: E402
import page  # noqa: E402
import shapes  # noqa: E402
import stemma  # noqa: E402
from dp_bench import Case, median, step_s  # noqa: E402

TITLE = "The simulator against measured steps"
OFF = 0.20  # of the measured seconds: the target
CORES = len(os.sched_getaffinity(0))
# A mesh, and whether its parameters are sharded.
MESHES = ("dp=4", "cp=4", "tp=4", "pp=4", "dp=2,tp=2", "dp=8", "dp=2,pp=2,tp=2", "pp=2,cp=2,tp=2", "dp=4 sharded", "dp=2,tp=2 sharded",
          "dp=2,pp=2 sharded")
CASES = (Case("4 × 512/128/8", ((512, 128, 8),) * 4), Case("2 × 1024/256/8", ((1024, 256, 8),) * 2))
# Shapes that tell rates apart; none of them is a case.
KNOWN = (Case("", ((256, 64, 4),)), Case("", ((1024, 128, 4),)), Case("", ((128, 256, 6),)), Case("", ((2048, 64, 2),)),
         Case("", ((512, 256, 4), (256, 128, 4))), Case("", ((768, 192, 6),)), Case("", ((64, 384, 4),)), Case("", ((1536, 256, 4),)))


def rates_of(client):
    """Seconds of each unit of work, by which the server plans now."""
    return client.plan(dp_bench.groups_of(KNOWN[0]), loss=stemma.grpo(), adam=stemma.adamw(1e-6), old="on_policy")["rates"]


def computing_rates(build, directory):
    """What a worker of one thread measures while another one computes beside it."""
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(CORES):
            server = stack.enter_context(stemma.LocalServer(directory, binary=pathlib.Path(build) / "bin" / "stemma", threads=1))
            clients.append(stack.enter_context(stemma.Client(server.address)))

        def learn(client):
            for case in (*KNOWN, *KNOWN[:4]):
                dp_bench.update(client, dp_bench.groups_of(case))

        threads = [threading.Thread(target=learn, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates = rates_of(clients[0])
        assert rates["calibrated"], rates
        return rates


def traces_of(build, folder):
    """{case: trace of its shapes}"""
    paths = {}
    for number, case in enumerate(CASES):
        (prompt, response, count), groups = case.groups[0], len(case.groups)
        paths[case.name] = folder / f"{number}.jsonl"
        subprocess.run([pathlib.Path(build) / "bin" / "stemma", "trace", "make", paths[case.name], "--groups", str(groups), "--n", str(count),
                        "--prompt-len", f"fixed:{prompt}", "--response-len", f"fixed:{response}", "--vocab", str(shapes.SPEC.vocab),
                        "--base64"], check=True, stdout=subprocess.DEVNULL)
    return paths


def simulated(build, config, mesh, trace, rates, folder):
    path = folder / "rates.json"
    path.write_text(json.dumps({"rates": rates}))
    out = subprocess.run([pathlib.Path(build) / "bin" / "stemma", "simulate", "--config", config, "--trace", trace, "--mesh", mesh,
                          "--threads", "1", "--cores", str(CORES), "--rates", path, "-o", "json"], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    return json.loads(out)["meshes"][0]


def measure(build, directory, rounds, meshes=MESHES, cases=CASES):
    """Yields (mesh, case, metrics of each round, the simulated mesh)."""
    computing = computing_rates(build, directory)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        traces = traces_of(build, folder)
        for mesh in meshes:
            config = folder / "run.yaml"
            sizes, _, sharded = mesh.partition(" ")
            axes = ", ".join(axis.replace("=", ": ") for axis in sizes.split(","))
            config.write_text(f"model: {directory}\nmesh: {{{axes}}}\nthreads: 1\nshard_parameters: {'on' if sharded else 'off'}\n")
            with stemma.LocalServer(directory, binary=pathlib.Path(build) / "bin" / "stemma", config=config) as server, \
                    stemma.Client(server.address) as client:
                networks = {name: seconds for name, seconds in rates_of(client).items() if name.startswith(("sent", "collective", "message"))}
                for case in cases:
                    steps = dp_bench.in_turns({mesh: client}, dp_bench.groups_of(case), rounds)[mesh]
                    answer = simulated(build, config, sizes, traces[case.name], {**computing, **networks}, folder)
                    print(f"{mesh} {case.name}: simulated {answer['seconds']:.2f} s, measured {[round(step_s(m), 2) for m in steps]} s", flush=True)
                    yield mesh, case.name, steps, answer


def table(measured):
    yield "| mesh | groups × P/R/N | measured s | simulated s | off | simulated: compute, wires, waits s |"
    yield "|---|---|---:|---:|---:|---:|"
    verdicts = []
    for mesh, case, steps, answer in measured:
        taken, parts = median(steps, step_s), answer["parts_s"]
        off = answer["seconds"] / taken - 1
        verdicts.append((f"{mesh}, {case}: {off:+.0%} off (target {OFF:.0%})", abs(off) <= OFF))
        wires, waits = sum(parts["wire"].values()), sum(parts["wait"].values()) + parts["imbalance"]
        yield f"| {mesh} | {case} | {taken:.2f} | {answer['seconds']:.2f} | {off:+.0%} | {parts['compute']:.2f}, {wires:.2f}, {waits:.2f} |"
    yield ""
    yield from page.verdict_lines(verdicts)


def section(build, directory, rounds):
    yield f"One optimizer step on {CORES} cores that all workers share, one thread each, against `stemma simulate --cores {CORES}`. Rates of"
    yield f"computing are those of {CORES} workers by themselves, at work at the same time; those of the networks, what the mesh's server says"
    yield "before its first step."
    yield ""
    yield from table(measure(build, directory, rounds))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build" / "release"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--meshes", nargs="+", default=MESHES)
    arguments = parser.parse_args()
    from oracle import models  # brings torch

    with tempfile.TemporaryDirectory() as scratch:
        directory = models.make(os.path.join(scratch, "model"), shapes.SPEC)
        print("\n".join(table(measure(arguments.build, directory, arguments.rounds, arguments.meshes))))


if __name__ == "__main__":
    main()
