"""B2: what is being received is bounded over all streams, checked part by part, and ended when nothing comes; calls that
wait leave room for others."""

import signal
import threading

import grpc
import pytest

from e2e.own_loopback import channel_to
from hostile.hostile_cluster import (Cluster, Held, Request, group_part, header_part, memory_mib, refusal, serves,
                                     wait_for)
from stemma import _proto
from stemma._stub import TrainingStub

SMALL = "limits:\n  message_bytes: 33554432\n  receiving_bytes: 67108864\n"
HASTY = "limits:\n  stream_idle_ms: 500\n"
LESS_HASTY = "limits:\n  stream_idle_ms: 5000\n"  # for streams of many MiB, which a loaded machine holds up
ROLLOUT_BYTES = 12  # of a token: its id, its old and its reference log-prob


@pytest.fixture(scope="module")
def cluster():
    with Cluster(fake=True, config=SMALL) as running:
        yield running


@pytest.fixture(scope="module")
def hasty():
    with Cluster(fake=True, config=HASTY) as running:
        yield running


@pytest.fixture(scope="module")
def less_hasty():
    with Cluster(fake=True, config=LESS_HASTY) as running:
        yield running


def large(mib, uid="large"):
    """A part that is valid and takes so many MiB."""
    positions = 32
    rollouts = (mib << 20) // (positions * ROLLOUT_BYTES + 300)
    return group_part(uid, rollouts, 4, positions - 4)


def log_probs_part():
    part = _proto.GroupPart()
    part.log_prob.weights, part.log_prob.temperature = "policy", 1.0
    return part


def test_a_part_is_refused_when_it_comes_and_the_rest_is_dropped(cluster):
    before = memory_mib(cluster)
    mask = group_part("g", mask=bytes(30 << 20))
    held = [Held(cluster.stub, [header_part(), mask]) for _ in range(20)]
    for stream in held:
        wait_for(lambda: stream.sent == 2 or stream.call.done(), "the mask to be sent")
    # 600 MiB were sent; what is left of them is what was on its way through gRPC.
    wait_for(lambda: memory_mib(cluster, "VmRSS") - before < 100, "the masks to be dropped")
    serves(cluster)
    end = _proto.GroupPart()
    end.end.num_groups = end.end.num_rollouts = 1
    for stream in held:
        stream.send(end)
        stream.end()
        refused = stream.refusal()
        assert refused.reason == "INVALID_REQUEST" and refused.fields == ["groups[0].rollouts[0].response_mask"], refused


def test_the_problems_of_parts_that_are_dropped_are_still_reported(cluster):
    bad = [group_part(f"g{i}", mask=bytes(9)) for i in range(3)]
    end = _proto.GroupPart()
    end.end.num_groups, end.end.num_rollouts = 4, 4
    refused = refusal(lambda: cluster.stub.UpdateActor(iter([header_part(), bad[0], group_part("good"), *bad[1:], end])))
    assert refused.reason == "INVALID_REQUEST" and refused.metadata["violations"] == "3"
    assert refused.fields == [f"groups[{i}].rollouts[0].response_mask" for i in (0, 2, 3)]


def test_bytes_of_all_streams_are_bounded_together(cluster):
    def hold():
        stream = Held(cluster.stub, [header_part(), large(24, "a"), large(24, "b")])
        wait_for(lambda: stream.sent == 3, "two parts to be sent")
        return stream

    holding = hold()

    def next_one():
        nonlocal holding
        if holding.call.done():  # one that came between its parts had taken the room of its second, which was refused
            assert refusal(holding.call.result).reason == "QUEUE_FULL"
            holding = hold()
        refused = refusal(lambda: cluster.stub.UpdateActor(iter([header_part(), large(24)]), timeout=60))
        return refused if refused.reason == "QUEUE_FULL" else None

    refused = wait_for(next_one, "the server to have read both parts")
    assert refused.code == grpc.StatusCode.RESOURCE_EXHAUSTED and refused.retry_after_s == 1
    assert "67108864" in refused.message and "limits.receiving_bytes" in refused.message
    assert Request().send(cluster.stub).steps_applied == 1, "small requests go on"
    holding.release()
    short = wait_for(lambda: (r := refusal(lambda: cluster.stub.UpdateActor(
        iter([header_part(), large(24)]), timeout=60))).reason == "SHORT_STREAM" and r, "the bytes to be given back")
    assert "cut" in short.message


def test_what_a_part_becomes_counts_before_it_is_decoded():
    """A million rollouts with nothing in them are 2 MB in a message, and 130 MB in memory."""
    parts = [header_part().SerializeToString(), group_part("g").SerializeToString() + group_of_empty_rollouts(1 << 20)]
    with Cluster(fake=True, config=SMALL) as cluster, channel_to(cluster.address) as channel:
        update = channel.stream_unary("/stemma.v1.TrainingService/UpdateActor", request_serializer=bytes)
        serves(cluster)
        before = memory_mib(cluster)
        for _ in range(4):
            refused = refusal(lambda: update(iter(parts), timeout=60))
            assert refused.reason == "LIMIT_EXCEEDED" and "limits.receiving_bytes" in refused.message, refused
        assert memory_mib(cluster) - before < 50
        serves(cluster)


def group_of_empty_rollouts(count):
    """More of the group of a GroupPart, in its bytes."""
    rollouts = b"\x1a\x00" * count
    return b"\x1a" + varint(len(rollouts)) + rollouts


def varint(number):
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes(written + bytes([number]))


@pytest.mark.parametrize("call", ["UpdateActor", "ComputeLogProb"])
def test_a_part_that_is_no_message_is_refused(cluster, call):
    kind = "stream_unary" if call == "UpdateActor" else "stream_stream"
    with channel_to(cluster.address) as channel:
        send = getattr(channel, kind)(f"/stemma.v1.TrainingService/{call}", request_serializer=bytes)
        answer = lambda: send(iter([b"\x1a\xff"]), timeout=60)
        refused = refusal(answer if kind == "stream_unary" else lambda: list(answer()))
    assert refused.reason == "SHORT_STREAM" and "no GroupPart" in refused.message, refused
    serves(cluster)


def test_a_request_that_could_never_be_received_is_told_so(cluster):
    refused = refusal(lambda: cluster.stub.UpdateActor(
        iter([header_part(), *(large(24, uid) for uid in "abc")]), timeout=60))
    assert refused.reason == "LIMIT_EXCEEDED" and "limits.receiving_bytes" in refused.message


@pytest.mark.parametrize("parts", ([], [header_part()], [header_part(), group_part("g")]), ids=("none", "header", "group"))
def test_an_idle_stream_is_ended(hasty, parts):
    refused = Held(hasty.stub, parts).refusal()
    assert (refused.code, refused.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "STREAM_IDLE"), refused
    assert "500 ms" in refused.message and "limits.stream_idle_ms" in refused.message


def test_an_idle_log_prob_stream_is_ended(hasty):
    gate = threading.Event()

    def parts():
        yield log_probs_part()
        gate.wait(60)

    try:
        refused = refusal(lambda: list(hasty.stub.ComputeLogProb(parts(), timeout=60)))
    finally:
        gate.set()
    assert refused.reason == "STREAM_IDLE", refused


@pytest.mark.parametrize("what", ("ReadResults", "ComputeLogProb"))
def test_a_client_that_reads_no_results_is_ended(less_hasty, what):
    """What it would be sent is more than any buffer on the way holds. (A connection that has carried much may hold it all: its
    client's window grows with it.)"""
    options = [("grpc.http2.bdp_probe", 0), ("grpc.max_send_message_length", -1)]
    with channel_to(less_hasty.address, options=options) as channel:
        expect_ended(less_hasty, TrainingStub(channel), what)
    serves(less_hasty)


def expect_ended(less_hasty, stub, what):
    groups, rollouts = 6, 8_000
    parts = [group_part(f"{'u' * 200}{i}", rollouts) for i in range(groups)]
    end = _proto.GroupPart()
    end.end.num_groups, end.end.num_rollouts = groups, groups * rollouts
    said = "a stream of results is ended"
    before = less_hasty.said().count(said)
    if what == "ComputeLogProb":
        call = stub.ComputeLogProb(iter([log_probs_part(), *parts, end]), timeout=120)
    else:
        request = Request()
        request.header["return_log_probs"] = True
        stub.UpdateActor(iter([header_part(request), *parts, end]), timeout=120)
        call = stub.ReadResults(_proto.ReadResultsRequest(request_id=request.id), timeout=120)
    wait_for(lambda: less_hasty.said().count(said) > before, "the stream to be ended")
    refused = refusal(lambda: list(call))
    assert refused.code == grpc.StatusCode.DEADLINE_EXCEEDED, refused
    assert "5000 ms" in refused.message and "limits.stream_idle_ms" in refused.message
    if what == "ReadResults":
        read = stub.ReadResults(_proto.ReadResultsRequest(request_id=request.id), timeout=120)
        assert sum(len(group.rollouts) for group in read) == groups * rollouts, "who reads has them all"


def test_calls_that_wait_for_a_request_do_not_hold_up_the_others_of_their_connection():
    with Cluster(fake=True, config="limits:\n  requests_in_flight: 300\n") as running:
        running.worker.send_signal(signal.SIGSTOP)
        request = Request()
        request.header["request"]["wait_ms"] = 0
        request.send(running.stub)
        poll = _proto.GetRequestRequest(request_id=request.id, wait_ms=60_000)
        polls = [running.stub.GetRequest.future(poll) for _ in range(1100)]
        cancelled = running.stub.CancelRequest(_proto.CancelRequestRequest(request_id=request.id), timeout=20)
        assert cancelled.failure.reason == "CANCELLED"
        assert all(p.result(timeout=20).failure.reason == "CANCELLED" for p in polls)


@pytest.mark.parametrize("algorithm", (grpc.Compression.Gzip, grpc.Compression.Deflate))
def test_compressed_messages_are_refused_before_they_are_unpacked(cluster, algorithm):
    before = memory_mib(cluster)
    options = [("grpc.max_send_message_length", -1)]
    with channel_to(cluster.address, options=options, compression=algorithm) as channel:
        bomb = group_part("g", mask=bytes(500 << 20))  # 500 MiB of zeros in half a MiB
        refused = refusal(lambda: TrainingStub(channel).UpdateActor(iter([header_part(), bomb]), timeout=60))
    assert refused.code == grpc.StatusCode.UNIMPLEMENTED, refused
    assert memory_mib(cluster) - before < 100
    serves(cluster)


def test_the_memory_of_a_request_goes_back_once_it_is_done():
    with Cluster(fake=True, config=SMALL) as cluster:
        serves(cluster)
        before = memory_mib(cluster, "VmRSS")
        groups = [large(24, f"g{index}") for index in range(2)]
        end = _proto.GroupPart()
        end.end.num_groups, end.end.num_rollouts = len(groups), sum(len(part.group.rollouts) for part in groups)
        assert cluster.stub.UpdateActor(iter([header_part(), *groups, end]), timeout=60).steps_applied == 1
        assert memory_mib(cluster) - before > 40, "control"
        wait_for(lambda: memory_mib(cluster, "VmRSS") - before < 16, "the memory to go back")
