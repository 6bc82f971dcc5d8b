"""D5: with offload under a budget a plan says two numbers, the least and what copies may take on top, and what is measured
lies between them."""

import json
import re
import subprocess

from e2e.errors.server import BUILD, Cluster

STEMMA = BUILD / "bin/stemma"
SLACK = 4096  # tensors of this tiny model are rounded up to 64 bytes each
OFFLOAD = ("--offload", "on", "--schedule", "reuse", "--prefix-policy", "s0", "--suffix-policy", "s0",
           "--optimizer-residency", "device", "--host-memory", "64MiB")


def run(*argv):
    done = subprocess.run([STEMMA, *map(str, argv)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plan_of(cluster, trace):
    return json.loads(run("plan", trace, "--server", cluster.address, "-o", "json"))


def step_of(cluster, trace):
    lines = run("replay", trace, "--server", cluster.address, "-o", "json").splitlines()
    return json.loads(lines[0])["metrics"]


def test_a_plan_with_offload_says_the_least_and_the_most_and_the_measured_peak_lies_between(tmp_path):
    trace = tmp_path / "trace.jsonl"
    run("trace", "make", trace, "--steps", 1, "--groups", 1, "--n", "fixed:4", "--prompt-len", "fixed:50", "--response-len", "fixed:8", "--vocab", 48)
    with Cluster(flags=OFFLOAD) as ample:
        plan = plan_of(ample, trace)
    least = plan["peak_bytes"]
    assert plan["peak_bytes_with_headroom"] > least, "an ample budget gives headroom"
    state = plan["state_bytes"]["device"]
    budget = state + int(least * 1.5)
    with Cluster(flags=(*OFFLOAD, "--memory-budget", str(budget))) as cluster:
        plan = plan_of(cluster, trace)
        assert plan["peak_bytes"] == least < plan["peak_bytes_with_headroom"] <= budget - state
        assert re.search(r"activations \S+ \w+ \(at most \S+ \w+ with headroom\)", run("plan", trace, "--server", cluster.address))
        metrics = step_of(cluster, trace)
    assert metrics["plan/predicted_bytes"] == least
    assert metrics["plan/predicted_with_headroom_bytes"] == plan["peak_bytes_with_headroom"]
    assert least * 0.97 - SLACK <= metrics["plan/measured_bytes"] <= plan["peak_bytes_with_headroom"] * 1.03 + SLACK
