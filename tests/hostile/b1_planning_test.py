"""B1: a request's plan never holds up the server, ends with its call, and takes bounded memory."""

import functools
import resource

import grpc
import pytest

from e2e.errors.good_request import Refusal
from hostile.hostile_cluster import Cluster, group_part, header_part, memory_mib, refusal, serves, wait_for
from stemma import _proto

# A little above the state of the model: too little to keep everything of a few groups together, so that every
# alternative is weighed for each of them.
TIGHT = ("--memory-budget", "170KB")


@pytest.fixture(scope="module")
def cluster():
    with Cluster(fake=True, config="limits:\n  requests_in_flight: 3\n", flags=TIGHT) as running:
        yield running


def stream(groups, validate_only=True, **header):
    head = header_part(**header)
    head.update.request.validate_only = validate_only
    end = _proto.GroupPart()
    end.end.num_groups = len(groups)
    end.end.num_rollouts = sum(len(g.group.rollouts) for g in groups)
    return [head, *groups, end]


@functools.cache
def many_groups():
    return [group_part(f"g{i}", 6, 20 + i % 20, 5 + i % 15) for i in range(4000)]


def endless():
    """A plan that takes minutes: thousands of groups of many sizes, in clusters that are cut again and again, in as many
    orders as the limits allow."""
    return stream(many_groups(), ppo_epochs=65, shuffle=True, seed=1)


def planned(cluster):
    """The plan of a small request, or None while the server has no place for it."""
    try:
        return cluster.stub.UpdateActor(iter(stream([group_part("g")])), timeout=60).plan
    except grpc.RpcError as error:
        assert Refusal(error).reason == "QUEUE_FULL"
        return None


def test_other_calls_are_answered_while_a_plan_is_made_and_it_ends_with_its_deadline(cluster):
    slow = cluster.stub.UpdateActor.future(iter(endless()), timeout=5)
    while not slow.done():
        assert cluster.state() in ("IDLE", "STEPPING")
    assert slow.code() == grpc.StatusCode.DEADLINE_EXCEEDED, slow.details()
    # In the same line as the endless one: it is answered only because that one has ended.
    assert cluster.stub.UpdateActor(iter(stream([group_part("g")])), timeout=60).plan.num_groups == 1
    serves(cluster)


def test_work_is_planned_beside_validations_and_validations_count_as_work_in_flight(cluster):
    def endless_call():
        return cluster.stub.UpdateActor.future(iter(endless()), timeout=120)

    calls = [endless_call(), endless_call()]
    serves(cluster)  # a place is left, and validations have a line of their own
    calls += [endless_call(), endless_call()]
    refused = wait_for(lambda: [call for call in calls if call.done()], "the fourth of them to be refused")
    full = refusal(refused[0].result)
    assert full.reason == "QUEUE_FULL" and full.retry_after_s == 1 and "3 requests are in flight" in full.message
    assert len(refused) == 1
    for call in calls:
        call.cancel()
    # Their ends reach the server some time after the client has given them up.
    assert wait_for(lambda: planned(cluster), "the cancelled calls to leave their places").num_groups == 1


def test_cancelling_a_request_ends_its_plan(cluster):
    parts = endless()
    parts[0].update.request.validate_only = False
    name = parts[0].update.request.request_id
    call = cluster.stub.UpdateActor.future(iter(parts), timeout=120)
    cancelled = None
    while cancelled is None:
        try:
            cancelled = cluster.stub.CancelRequest(_proto.CancelRequestRequest(request_id=name), timeout=60)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.NOT_FOUND and not call.done()
    assert cancelled.failure.reason == "CANCELLED" and call.exception().code() == grpc.StatusCode.CANCELLED
    serves(cluster)


def test_plans_of_equal_epochs_are_held_once(cluster):
    before = memory_mib(cluster)
    groups = [group_part(f"g{i}", 1, 2, 1) for i in range(1000)]
    plan = cluster.stub.UpdateActor(iter(stream(groups, ppo_epochs=2048)), timeout=60).plan
    assert plan.num_steps == 2048 and len(plan.steps) == 1
    # 1 GB when every epoch's steps were held: one epoch's take about 0.5 MB.
    assert memory_mib(cluster) - before < 60


def test_shuffled_epochs_are_limited_by_a_published_limit(cluster):
    limit = cluster.stub.GetServerInfo(_proto.GetServerInfoRequest()).config.limits.planned_groups
    assert limit == 262144
    groups = [group_part(f"g{i}", 1, 2, 1) for i in range(1000)]
    refused = refusal(lambda: cluster.stub.UpdateActor(
        iter(stream(groups, ppo_epochs=limit // 1000 + 1, shuffle=True, seed=1)), timeout=60))
    assert refused.reason == "LIMIT_EXCEEDED" and "limits.planned_groups" in refused.message and "262144" in refused.message


def test_a_plan_that_the_machine_has_no_memory_for_is_an_error_of_its_request():
    """1 MB of groups in as many shuffled epochs as the limits allow, under a limit on the server's memory. With a server
    of its own: one that has planned large requests holds memory that it can use again."""
    groups = [group_part(f"g{i}", 1, 2, 1) for i in range(8000)]
    parts = stream(groups, ppo_epochs=32, shuffle=True, seed=1)
    with Cluster(fake=True, flags=TIGHT) as cluster:
        pid = cluster.server.pid
        written = int(memory_mib(cluster, "VmData")) << 20  # without what is only reserved
        old = resource.prlimit(pid, resource.RLIMIT_DATA, (written + (48 << 20), resource.RLIM_INFINITY))
        try:
            refused = refusal(lambda: cluster.stub.UpdateActor(iter(parts), timeout=120))
            assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER_MEMORY"), refused
            assert refused.retry_after_s == 1
        finally:
            resource.prlimit(pid, resource.RLIMIT_DATA, old)
        serves(cluster)
