"""`stemma replay --trace-out`: what the ranks of a real gang did in one step agrees with the plan and with the metrics."""

import contextlib
import copy
import json
import pathlib
import subprocess
import sys

import pytest
from step_trace_check import Trace, check_collectives, check_exchanges, check_lanes, check_once, check_seconds, check_trace, check_waves

import stemma
from e2e.gang.small_groups import STEMMA, groups_of, make_model

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
ADAM = stemma.adamw(1e-3)
OLD = {"ON_POLICY": {"from": "ON_POLICY"}, "WEIGHTS": {"from": "WEIGHTS", "weights": "policy"}}
# Every group is split, into parts of different sizes: by its rollouts a cluster of the plan is known to be of a rank.
SIZES = ((24, 9), (12, 3))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@contextlib.contextmanager
def serving(model, folder, workers, **keys):
    config = folder / "run.yaml"
    config.write_text("".join(f"{key}: {value}\n" for key, value in {
        "model": model, "dtype": "fp32", "threads": 1, "memory_budget_bytes": "128MB", "host_memory_bytes": "16MB",
        "schedule": "reuse", "wave_suffixes": 2, "shard_parameters": "off", "mesh": f"{{dp: {workers}}}", **keys}.items()))
    with stemma.LocalServer(model, binary=STEMMA, config=config) as server:
        yield server.address


@pytest.fixture(scope="module")
def split(model, tmp_path_factory):
    with serving(model, tmp_path_factory.mktemp("split"), 2, split_groups="on") as address:
        yield address


def call(*arguments, code=0):
    result = subprocess.run([STEMMA, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout if code == 0 else result.stderr


def write_trace(path, requests=1, old="ON_POLICY", sizes=SIZES, **header):
    writer = stemma.trace.TraceWriter(path)
    for seed in range(requests):
        writer.write(groups_of(seed, sizes), stemma.grpo(), ADAM, old=OLD[old], **header)
    writer.close()
    return path


def plan_of(address, path, k=0):
    """By rank, how many waves each of its clusters has, and how many clusters have a prefix."""
    plan = json.loads(call("plan", path, "--server", address, "-o", "json").splitlines()[0])
    clusters = [c for c in plan["cluster_reports"] if c["k"] == k]
    rank_of = {(split["uid"], rollouts): rank for split in plan["split_groups"] if split["k"] == k
               for rank, rollouts in zip(split["ranks"], split["rollouts"])}
    waves = {rank: [] for rank in {0, *rank_of.values()}}
    for cluster in clusters:
        rank = rank_of[cluster["reuse_uids"][0], sum(cluster["wave_sizes"])] if rank_of else 0
        waves[rank].append(len(cluster["wave_sizes"]))
    return {"waves_of_ranks": waves, "clusters_with_prefix": sum(bool(c["reuse_uids"]) for c in clusters)}


def replay(address, path, folder, *arguments):
    """The trace's document and the metrics of all steps."""
    out = folder / "step.json"
    lines = call("replay", path, "--server", address, "--run-id", folder.name, "-o", "json", "--trace-out", out, *arguments)
    return json.loads(out.read_text()), [json.loads(line)["metrics"] for line in lines.splitlines()]


@pytest.fixture(scope="module")
def split_step(split, tmp_path_factory):
    folder = tmp_path_factory.mktemp("split-step")
    path = write_trace(folder / "trace.jsonl")
    expected = plan_of(split, path)
    document, metrics = replay(split, path, folder)
    return document, {"ranks": 2, "metrics": metrics[0], **expected}


def test_two_ranks_that_split_their_groups(split_step):
    document, expected = split_step
    trace = check_trace(document, **expected)
    assert expected["clusters_with_prefix"] == 4 and all(len(w) == 2 for w in expected["waves_of_ranks"].values())
    assert max(max(w) for w in expected["waves_of_ranks"].values()) > 1, "waves of two suffixes"
    assert len(trace.of(0, "compute", "send K/V", "send gK/gV") + trace.of(1, "compute", "send K/V", "send gK/gV")) == 4
    assert trace.processes[0].endswith(", cpu:0)") and trace.processes[1].endswith(", cpu:1)")
    # Every collective was met by all its ranks, so each says who came last.
    assert all(e["args"]["last_rank"] in (0, 1) for rank in (0, 1) for e in trace.collectives(rank))


def test_ranks_that_hold_a_copy_together(model, tmp_path):
    """A copy of four ranks, which tell what they exchange inside of it, in the step and around it; nobody is lost over it."""
    path = write_trace(tmp_path / "trace.jsonl", requests=2)
    with serving(model, tmp_path, 1, mesh="{cp: 2, tp: 2}", prefix_kv="regather") as address:
        document, metrics = replay(address, path, tmp_path)
        generation = json.loads(call("status", "--server", address, "-o", "json").splitlines()[0])["generation"]
    assert len(metrics) == 2 and generation == 1, "no rank was lost over what it told"
    trace = Trace(document)
    for rank in range(4):
        names = {event["name"] for event in trace.collectives(rank)}
        assert {"prefix_kv", "prefix_gradients", "waves_ended", "rows", "row_sums", "weights_digest"} <= {
            name.split()[-1] for name in names}, names


def test_stages_of_a_pipeline(model, tmp_path):
    """What stages hand to each other is told by both, in the order of the ranks, and they wait for each other there."""
    path = write_trace(tmp_path / "trace.jsonl", requests=2)
    with serving(model, tmp_path, 1, mesh="{pp: 2, tp: 2}") as address:
        document, metrics = replay(address, path, tmp_path)
        generation = json.loads(call("status", "--server", address, "-o", "json").splitlines()[0])["generation"]
    assert len(metrics) == 2 and generation == 1, "no rank was lost over what it told"
    assert metrics[0]["time/pipeline_s"] > 0 and metrics[0]["ranks/pipeline_bytes"] > 0
    trace = Trace(document)
    for rank in range(4):
        told = {(event["name"], event["args"].get("peer")) for event in trace.collectives(rank)}
        first, other = rank < 2, (rank + 2) % 4
        for name in ("hidden", "cluster"):
            assert (f"{'send' if first else 'receive'} {name}", other) in told, told
        assert (f"{'receive' if first else 'send'} hidden_gradients", other) in told, told


def test_sharded_parameters_travel_beside_the_layers(model, tmp_path):
    path = write_trace(tmp_path / "trace.jsonl", requests=2)
    with serving(model, tmp_path, 1, mesh="{dp: 2, tp: 2}", shard_parameters="on") as address:
        document, metrics = replay(address, path, tmp_path)
        generation = json.loads(call("status", "--server", address, "-o", "json").splitlines()[0])["generation"]
    assert len(metrics) == 2 and generation == 1, "no rank was lost over what it told"
    assert metrics[0]["time/parameters_s"] > 0 and metrics[0]["ranks/parameters_bytes"] > 0
    trace = Trace(document)
    for rank in range(4):
        names = [event["name"].split()[-1] for event in trace.collectives(rank)]
        assert names.count("parameters") > 4 and names.count("parameter_gradients") > 4, names
        assert "gradients" not in names and "weights" not in names, "nothing is reduced or gathered once more"


def spoiled(document):
    """The document with one thing wrong with it, in each of many ways."""
    events = document["traceEvents"]
    spans = [i for i, e in enumerate(events) if e["ph"] == "X"]

    def changed(name, change):
        other = copy.deepcopy(document)
        change(other["traceEvents"], [i for i in spans if events[i]["name"] == name])
        return name, other

    def remove(them, places):
        del them[places[0]]

    def move(them, places):
        them[places[0]]["ts"] += 1e9

    def grow(them, places):  # on every rank: a metric is that of the slowest
        for place in places:
            them[place]["dur"] += 1

    names = ("PREPARE", "APPLY", "A: prefix forward", "B: wave forward", "B: wave backward", "C: prefix backward", "send K/V",
             "receive K/V", "send gK/gV", "receive gK/gV", "agree", "reduce gradients", "gather weights",
             "zero gradients", "gradient norm", "AdamW", "reduce-scatter gradients", "all-gather weights", "agreement step", "send split.k", "receive split.gv", "send split.word")
    for name in names:
        yield "without", *changed(name, remove)
    for name in ("A: prefix forward", "B: wave forward", "send split.k", "AdamW", "gradient norm"):
        yield "later", *changed(name, move)
    for name in ("APPLY", "A: prefix forward", "C: prefix backward"):
        yield "longer", *changed(name, grow)


def test_the_checks_see_what_is_wrong(split_step):
    document, expected = split_step
    missed = []
    for how, name, other in spoiled(document):
        with contextlib.suppress(AssertionError):
            check_trace(other, **expected)
            missed.append((how, name))
    assert not missed


def test_a_step_of_several_and_its_entry_pass(split, tmp_path):
    groups = groups_of(7, SIZES)
    with stemma.Client(split) as client:
        options = {"loss": stemma.grpo(), "adam": ADAM, "old": "policy", "mini_batch": 1, "epochs": 2, "schedule": "reuse"}
        first = client.update_actor(groups, trace_step=0, **options)
        third = client.update_actor(groups, trace_step=2, **options)
    assert [step.trace is not None for step in first.steps] == [True, False, False, False]
    assert [step.trace is not None for step in third.steps] == [False, False, True, False]

    def kinds(step, entry):
        return {span["kind"] for rank in step.trace["ranks"] for span in rank["spans"]["spans"] if span["entry"] == entry}

    assert kinds(first.steps[0], entry=True) == {"PREFIX_FORWARD", "WAVE_FORWARD", "SEND_KV", "RECEIVE_KV"}
    assert not kinds(third.steps[2], entry=True)
    for rank in third.steps[2].trace["ranks"]:
        agreed = [s["start_ns"] + s["duration_ns"] for s in rank["spans"]["spans"] if s["kind"] == "AGREE"]
        assert agreed == [rank["spans"]["agreed_ns"]], "ranks are moved by the end of their agreement"
    assert {"PREFIX_BACKWARD", "SEND_GRADIENTS", "ADAMW", "ZERO_GRADIENTS"} <= kinds(third.steps[2], entry=False)


def test_the_step_is_chosen_over_all_requests(split, tmp_path):
    path = write_trace(tmp_path / "trace.jsonl", requests=2, old="WEIGHTS", ppo_mini_batch_size=1)
    document, metrics = replay(split, path, tmp_path, "--trace-step", 4)
    assert len(metrics) == 4
    trace = Trace(document)
    assert trace.other["request_id"] == f"{tmp_path.name}/3", "line 3 holds the second request"
    check_seconds(trace, metrics[3])
    with pytest.raises(AssertionError):
        check_seconds(trace, metrics[2])


def test_a_step_that_there_is_not_and_an_answer_from_before(split, tmp_path):
    path = write_trace(tmp_path / "trace.jsonl", requests=2, old="WEIGHTS", ppo_mini_batch_size=1)
    out = tmp_path / "step.json"
    arguments = ("replay", path, "--server", split, "--run-id", tmp_path.name)
    assert "--trace-step 5: the requests to be submitted hold 4 steps" in call(*arguments, "--trace-out", out, "--trace-step", 5,
                                                                               code=2)
    assert "--trace-step 3: the requests to be submitted hold 2 steps" in call(*arguments, "--limit", 1, "--trace-out", out,
                                                                               "--trace-step", 3, code=2)
    assert "--trace-out" in call(*arguments, "--trace-step", 1, code=2)
    assert "--trace-out: " in call(*arguments, "--trace-out", tmp_path / "none" / "step.json", code=2)
    call(*arguments)  # the digest is the same with a trace and without
    assert "the request was answered before" in call(*arguments, "--trace-out", out, code=1)
    assert not out.exists(), "nothing was written, so nothing is left"


def test_nothing_is_recorded_unless_it_is_asked_for(split):
    with stemma.Client(split) as client:
        result = client.update_actor(groups_of(9, SIZES), loss=stemma.grpo(), adam=ADAM, old="on_policy")
        assert [step.trace for step in result.steps] == [None]
        with pytest.raises(stemma.StemmaError, match="trace_step is 1"):
            client.update_actor(groups_of(9, SIZES), loss=stemma.grpo(), adam=ADAM, old="on_policy", trace_step=1)


def least_budget(model, folder, workers, path, keys):
    """The bytes in which the trace's plan has no headroom: what leaves the device has left it before its phase ends."""
    with serving(model, folder, workers, **keys) as address:
        plan = json.loads(call("plan", path, "--server", address, "-o", "json").splitlines()[0])
    return plan["state_bytes"]["device"] + plan["peak_bytes"]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_copies_of_an_offloaded_tape(model, tmp_path, workers):
    keys = {"offload": "on", "prefix_policy": "s0", "optimizer_residency": "device", "host_memory_bytes": "64MB"}
    if workers > 1:
        keys["split_groups"] = "on"
    path = write_trace(tmp_path / "trace.jsonl", sizes=((400, 3), (200, 3)))
    budget = least_budget(model, tmp_path, workers, path, keys)
    with serving(model, tmp_path, workers, memory_budget_bytes=budget, **keys) as address:
        expected = plan_of(address, path)
        document, metrics = replay(address, path, tmp_path)
    trace = check_trace(document, ranks=workers, metrics=metrics[0], **expected)
    copied = {name: sum(e["args"]["bytes"] for (_, lane), events in trace.lanes.items() if lane.startswith("copies")
                        for e in events if e["name"] == name and e["ts"] < prepared(trace, e["pid"]))
              for name in ("copy out", "copy in")}
    # The metrics count what lies in host memory, each tensor on 64 bytes of its own.
    assert copied["copy out"] >= 0.99 * metrics[0]["offload/bytes_out"] > 0
    assert 1 >= copied["copy in"] / metrics[0]["offload/bytes_in"] > 0.99


def drawn_trace(tmp_path, name):
    """A trace of docs, whose picture there is what is drawn from it."""
    drawn = tmp_path / "drawn.svg"
    subprocess.run([sys.executable, DOCS / "make_step_trace_svg.py", DOCS / f"{name}.json", drawn], check=True)
    assert drawn.read_text() == (DOCS / f"{name}.svg").read_text(), "run docs/make_step_trace_svg.py"
    trace = Trace(json.loads((DOCS / f"{name}.json").read_text()))
    assert len(trace.ranks) == 2
    return trace


def test_the_picture_is_drawn_from_a_trace_in_which_all_holds(tmp_path):
    trace = drawn_trace(tmp_path, "step-trace")
    check_lanes(trace)
    check_once(trace)
    check_exchanges(trace)
    assert check_collectives(trace) == 2, "both ranks send"


def test_the_picture_of_a_pipeline_has_all_phases_and_no_gap_between_clusters(tmp_path):
    trace = drawn_trace(tmp_path, "pipeline-trace")
    for rank in trace.ranks:
        phases = [e for e in trace.of(rank, "compute") if e["name"][:2] in ("A:", "B:", "C:")]
        assert sorted(e["name"][0] for e in phases) == list("A" * 4 + "B" * 16 + "C" * 4)
        gaps = [after["ts"] - before["ts"] - before["dur"] for before, after in zip(phases, phases[1:])]
        assert max(gaps) < 0.01 * phases[-1]["ts"]


def prepared(trace, rank):
    """When the rank's PREPARE ended."""
    whole = trace.of(rank, "step", "PREPARE")[0]
    return whole["ts"] + whole["dur"]


def test_three_ranks_of_which_some_have_nothing(model, tmp_path):
    with serving(model, tmp_path, 3, split_groups="off") as address:
        path = tmp_path / "trace.jsonl"
        writer = stemma.trace.TraceWriter(path)
        writer.write(groups_of(3, ((9, 2),)), stemma.grpo(), ADAM, old=OLD["ON_POLICY"])
        writer.close()
        document, metrics = replay(address, path, tmp_path)
    trace = Trace(document)
    busy = [rank for rank in trace.ranks if trace.of(rank, "compute", "A: prefix forward")]
    assert len(busy) == 1
    check_trace(document, ranks=3, metrics=metrics[0], clusters_with_prefix=1,
                waves_of_ranks={rank: [1] if rank in busy else [] for rank in range(3)})
    idle = next(rank for rank in trace.ranks if rank not in busy)
    assert not trace.of(idle, "compute", "C: prefix backward")
    with pytest.raises(AssertionError):
        check_waves(trace, {rank: [1] for rank in range(3)})
