"""What must hold of a trace that `stemma replay --trace-out` wrote. Each check raises AssertionError with what it found."""

import collections

# Phase metrics by the spans that they time, and how a step's metric merges its ranks.
METRICS = {
    "time/prefix_forward_s": (("A: prefix forward",), max),
    "time/suffix_s": (("B: wave forward", "B: wave backward"), max),
    "time/prefix_backward_s": (("C: prefix backward",), max),
    "time/split_s": (("send K/V", "receive K/V", "send gK/gV", "receive gK/gV"), max),
    "time/agree_s": (("agree",), max),
    "time/reduce_s": (("reduce gradients",), min),
    "time/gather_s": (("gather weights",), max),
    "time/apply_s": (("APPLY",), max),
}
_ROUNDING_US = 2e-3  # of each span: its ends are rounded to nanoseconds


class Trace:
    """The events of a trace by rank and lane."""

    def __init__(self, document):
        assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}, set(document)
        self.other = document["otherData"]
        events = document["traceEvents"]
        assert {event["ph"] for event in events} == {"M", "X"}
        lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        self.lanes = collections.defaultdict(list)  # by rank and lane, by their start
        for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
            assert event["ts"] >= 0 and event["dur"] >= 0, event
            self.lanes[event["pid"], lanes[event["pid"], event["tid"]]].append(event)

    @property
    def ranks(self):
        return sorted(self.processes)

    def of(self, rank, lane, *names, entry=False):
        """A rank's events of a lane, of these names if any are given."""
        found = [e for e in self.lanes[rank, lane] if (e["cat"] == "entry") == entry]
        names = [f"entry log-probs, {name}" for name in names] if entry else names
        return [e for e in found if not names or e["name"] in names]

    def collectives(self, rank):
        return sorted((e for (pid, lane), events in self.lanes.items() if pid == rank and lane.startswith("collectives")
                       for e in events), key=lambda e: e["ts"])


def end(event):
    return event["ts"] + event["dur"]


def check_lanes(trace):
    """Nothing overlaps in a lane, and every span lies in its PREPARE or its APPLY."""
    for (rank, lane), events in trace.lanes.items():
        for one, next_one in zip(events, events[1:]):
            assert end(one) <= next_one["ts"] + _ROUNDING_US, (rank, lane, one, next_one)
        whole = trace.of(rank, "step")
        assert [e["name"] for e in whole] == ["PREPARE", "APPLY"], (rank, whole)
        for event in events:
            inside = [w for w in whole if w["ts"] <= event["ts"] + _ROUNDING_US and end(event) <= end(w) + _ROUNDING_US]
            assert inside, (rank, lane, event)


def check_waves(trace, waves_of_ranks, entry=False):
    """Each wave of the plan runs once: forward, and backward unless this is the entry pass. `waves_of_ranks`: by rank, how
    many waves each of its clusters has."""
    for rank in trace.ranks:
        expected = sorted((c, w) for c, waves in enumerate(waves_of_ranks[rank]) for w in range(waves))
        for name in ("B: wave forward",) if entry else ("B: wave forward", "B: wave backward"):
            found = sorted((e["args"]["cluster"], e["args"]["wave"]) for e in trace.of(rank, "compute", name, entry=entry))
            assert found == expected, (rank, name, found, expected)


def check_phases(trace, clusters_with_prefix):
    """A, or K/V from another rank, then the waves, then C, or gK/gV to another rank; forward before backward.
    `clusters_with_prefix`: how many there are, over all ranks."""
    begins = ends = 0
    for rank in trace.ranks:
        by_cluster = collections.defaultdict(lambda: collections.defaultdict(list))
        for e in trace.of(rank, "compute"):
            if "cluster" in e.get("args", {}):
                by_cluster[e["args"]["cluster"]][e["name"]].append(e)
        for cluster, events in by_cluster.items():
            first, last = (events[a] + events[b] for a, b in (("A: prefix forward", "receive K/V"),
                                                             ("C: prefix backward", "send gK/gV")))
            forward = {e["args"]["wave"]: e for e in events["B: wave forward"]}
            backward = {e["args"]["wave"]: e for e in events["B: wave backward"]}
            for wave, e in backward.items():
                assert end(forward[wave]) <= e["ts"] + _ROUNDING_US, (rank, cluster, wave)
            assert len(first) == len(last) <= 1, (rank, cluster, first, last)
            begins, ends = begins + len(first), ends + len(last)
            for a in first:
                assert all(end(a) <= e["ts"] + _ROUNDING_US for e in forward.values()), (rank, cluster, a)
            for c in last:
                assert all(end(e) <= c["ts"] + _ROUNDING_US for e in backward.values()), (rank, cluster, c)
    assert begins == ends == clusters_with_prefix, (begins, ends, clusters_with_prefix)


def check_collectives(trace):
    """Ranks make the same collectives in one order; a send has its receive, in the order of their pair."""
    common, sent, received = {}, collections.defaultdict(list), collections.defaultdict(list)
    for rank in trace.ranks:
        common[rank] = []
        for e in trace.collectives(rank):
            kind, name = e["name"].split(" ")
            if kind == "send":
                sent[rank, e["args"]["peer"]].append((name, e["args"]["bytes"]))
            elif kind == "receive":
                received[e["args"]["peer"], rank].append((name, e["args"]["bytes"]))
            else:
                common[rank].append((e["name"], e["args"]["bytes"]))
    assert all(common[rank] == common[0] for rank in trace.ranks), common
    assert dict(sent) == dict(received), (sent, received)
    if len(trace.ranks) > 1:
        assert sum(name == "agreement step" for name, _ in common[0]) == 1, common[0]
        assert any(name == "reduce-scatter gradients" for name, _ in common[0]), common[0]
        assert any(name == "all-gather weights" for name, _ in common[0]), common[0]
    return len(sent)


def check_once(trace):
    """What every rank does once in a step, one that computes nothing too."""
    names = ["zero gradients", "gradient norm", "AdamW"]
    if len(trace.ranks) > 1:
        names += ["agree", "reduce gradients", "gather weights"]
    for rank in trace.ranks:
        for name in names:
            assert len(trace.of(rank, "compute", name)) == 1, (rank, name)


def check_exchanges(trace):
    """What one rank sends of a split group, its peer receives, as often."""
    for what in ("K/V", "gK/gV"):
        sent, received = collections.Counter(), collections.Counter()
        for rank in trace.ranks:
            sent.update((rank, e["args"]["peer"]) for e in trace.of(rank, "compute", f"send {what}"))
            received.update((e["args"]["peer"], rank) for e in trace.of(rank, "compute", f"receive {what}"))
        assert sent == received, (what, sent, received)


def check_seconds(trace, metrics):
    """The spans of a phase are the seconds that the step's metrics name: they come from the same readings of the clock."""
    for name, (spans, merge) in METRICS.items():
        lane = "step" if spans == ("APPLY",) else "compute"
        of_ranks = [trace.of(rank, lane, *spans) for rank in trace.ranks]
        if name not in metrics:
            assert not any(of_ranks), (name, of_ranks)
            continue
        # Rounds of the reduction that run in the last backward are no part of its phase.
        measured = merge(sum(e["dur"] - e.get("args", {}).get("reduction_us", 0) for e in events) for events in of_ranks)
        allowed = _ROUNDING_US * max(1, max(map(len, of_ranks)))
        assert abs(measured - 1e6 * metrics[name]) <= allowed, (name, measured, metrics[name])


def check_trace(document, *, ranks, waves_of_ranks, clusters_with_prefix, metrics):
    trace = Trace(document)
    assert trace.ranks == list(range(ranks)) and trace.other["ranks"] == ranks
    assert trace.other["spans_dropped"] == [0] * ranks
    assert ("clock_error_us" in trace.other) == (ranks > 1)
    check_lanes(trace)
    check_waves(trace, waves_of_ranks)
    check_phases(trace, clusters_with_prefix)
    check_once(trace)
    check_exchanges(trace)
    check_collectives(trace)
    check_seconds(trace, metrics)
    return trace
