"""Memory is flat over 10,000 refused calls and over 1,000 steps: the server's, and the worker's."""

import pathlib
import random
import sys

import grpc
import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "errors"), str(pathlib.Path(__file__).resolve().parent)]

import memory_growth  # noqa: E402
from good_request import Request, refusal  # noqa: E402
from server import Cluster  # noqa: E402
from stemma import _proto  # noqa: E402

REFUSED, STEPS = 10_000, 1_000
SAMPLES = 40
# Outcomes of that many requests are kept, so that retention is full before the warm-up ends and its bound is no growth.
LIMITS = "limits:\n  message_bytes: 65536\n  steps: 8\n  requests_kept: 8\n"


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_ARENA_MAX", "1")  # else each of gRPC's threads fills an arena of its own, at its own time
        with Cluster(config=LIMITS) as running:
            yield running


def sampled(cluster, calls, warm_up, call):
    """{process: bytes after the warm-up and after each further part of the calls}"""
    pids = {"server": cluster.server.pid, "worker": cluster.worker.pid}
    samples = {name: [] for name in pids}
    for n in range(warm_up + calls + 1):
        if n >= warm_up and (n - warm_up) % (calls // SAMPLES) == 0:
            for name, pid in pids.items():
                samples[name].append(memory_growth.anonymous_bytes(pid))
        if n < warm_up + calls:
            try:
                call(n)
            except Exception as error:  # what the processes said goes with the cluster
                raise AssertionError(f"call {n}, server {cluster.server.poll()}: {cluster.said()[-4000:]}") from error
    return samples


def refuse(cluster, n):
    """A call that must fail, of a kind that depends on n."""
    request = Request()
    stub = cluster.stub
    kinds = (
        (lambda: request.rollout().update(response_tokens=[10**6, 1, 2]), "INVALID_REQUEST"),
        (lambda: request.groups[1].update(uid="g0"), "INVALID_REQUEST"),
        (lambda: request.header["adam"].update(beta1=2.0), "INVALID_REQUEST"),
        (lambda: request.header["request"].update(expected_lineage=f"none-{n}"), "LINEAGE_MISMATCH"),
        (lambda: request.header.update(ppo_epochs=9), "LIMIT_EXCEEDED"),
    )
    unknown = (lambda: stub.GetRequest(_proto.GetRequestRequest(request_id=f"none-{n}")),
               lambda: stub.CancelRequest(_proto.CancelRequestRequest(request_id=f"none-{n}")))
    kind = n % (len(kinds) + len(unknown))
    if kind < len(kinds):
        spoil, reason = kinds[kind]
        spoil()
        error = refusal(lambda: request.send(stub))
        assert error.reason == reason, error
    else:
        error = refusal(unknown[kind - len(kinds)])
        assert error.code == grpc.StatusCode.NOT_FOUND, error


def check_flat(samples):
    for name, values in samples.items():
        print(f"{name}: {values[0] >> 10} KiB, then {memory_growth.growth(values) >> 10} KiB more")
    growing = [name for name, values in samples.items() if not memory_growth.is_flat(values)]
    assert not growing, {name: [value >> 10 for value in samples[name]] for name in growing}


def test_refused_calls_leave_nothing(cluster):
    check_flat(sampled(cluster, REFUSED, 2_500, lambda n: refuse(cluster, n)))


def test_steps_leave_nothing(cluster):
    before = cluster.model().step
    check_flat(sampled(cluster, STEPS, 600, lambda n: Request().send(cluster.stub)))
    assert cluster.model().step == before + STEPS + 600


@pytest.mark.parametrize("calls", [STEPS, REFUSED])
@pytest.mark.parametrize("kept_bytes", [0, 200, 1024])
def test_a_kibibyte_for_each_call_is_noticed(calls, kept_bytes):
    rng = random.Random(calls + kept_bytes)
    samples = [(60 << 20) + n * (calls // SAMPLES) * kept_bytes + rng.randrange(100 << 10) for n in range(SAMPLES + 1)]
    assert memory_growth.is_flat(samples) == (kept_bytes == 0 or (kept_bytes == 200 and calls == STEPS))


def test_what_comes_and_goes_is_no_growth():
    assert memory_growth.is_flat([(60 << 20) + (n % 3) * (4 << 20) for n in range(SAMPLES + 1)])
    assert memory_growth.is_flat([60 << 20] * 10 + [50 << 20] * 31)
