"""B4: long names, bytes after the end, fields that nobody knows: an error that says so, never a broken stream."""

import grpc
import pytest

from hostile.hostile_cluster import Cluster, Request, group_part, header_part, refusal, serves
from stemma import _proto

LONG = "x" * 100_000
# Percent-encoded, each of these takes nine bytes of the metadata that an error travels in.
WIDE = "\N{SNOWMAN}" * 33_000
UNKNOWN = b"\xf2\x3f\x03abc"  # field 1022, three bytes


@pytest.fixture(scope="module")
def cluster():
    with Cluster(fake=True, config="limits:\n  string_bytes: 65536\n") as running:
        yield running


def small_calls(stub, name):
    return {
        "GetRequest": lambda: stub.GetRequest(_proto.GetRequestRequest(request_id=name), timeout=60),
        "CancelRequest": lambda: stub.CancelRequest(_proto.CancelRequestRequest(request_id=name), timeout=60),
        "ReadResults": lambda: list(stub.ReadResults(_proto.ReadResultsRequest(request_id=name), timeout=60)),
    }


@pytest.mark.parametrize("name", (LONG, WIDE, "", "../x", "a\nb"), ids=("long", "wide", "empty", "dots", "newline"))
@pytest.mark.parametrize("call", ("GetRequest", "CancelRequest", "ReadResults"))
def test_an_id_that_no_request_can_have_is_refused_by_its_field(cluster, call, name):
    refused = refusal(small_calls(cluster.stub, name)[call])
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"), refused
    assert refused.fields == ["request_id"] and len(refused.message) < 1000


@pytest.mark.parametrize("call", ("GetRequest", "CancelRequest", "ReadResults"))
def test_an_id_that_a_request_could_have_is_not_found(cluster, call):
    refused = refusal(small_calls(cluster.stub, "x" * 128)[call])
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND"), refused


@pytest.mark.parametrize("text", (LONG, WIDE), ids=("long", "wide"))
def test_no_error_says_a_long_string_again(cluster, text):
    """Every string of a request and of the small calls: the error arrives whole, with its reason."""
    short = text[:20_000]  # within the limit on strings of this server, which is far above the default
    requests = []
    for path in ("uid", "stat_group", "rollout_id", "sample_id"):
        for value in (text, short):
            group = group_part("g", mask=b"\x01\x02")
            where = group.group if path in ("uid", "stat_group") else group.group.rollouts[0]
            setattr(where, path, value)
            requests.append([header_part(), group])
    for path in ("loss.loss_mode", "loss.loss_agg_mode", "loss.kl_loss_type", "old.weights", "request.request_id",
                 "request.expected_lineage"):
        header = header_part()
        outer, name = path.split(".")
        setattr(getattr(header.update, outer), name, short)
        requests += [[header, group_part("g")]]
    more = _proto.GroupPart()
    more.more.uid = text
    requests.append([header_part(), more])
    for parts in requests:
        refused = refusal(lambda: cluster.stub.UpdateActor(iter(parts), timeout=60))
        assert refused.reason in ("INVALID_REQUEST", "SHORT_STREAM"), refused
        assert len(refused.message) < 1500
    for fields in ({"name": text}, {"name": "a", "dtype": text}, {"name": "a", "expected_lineage": text}):
        refused = refusal(lambda: cluster.stub.ExportWeights(_proto.ExportWeightsRequest(**fields), timeout=60))
        assert refused.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED) and refused.reason, refused
    save = _proto.SaveCheckpointRequest(name="a", expected_lineage=text)
    refused = refusal(lambda: cluster.stub.SaveCheckpoint(save, timeout=60))
    assert (refused.reason, refused.fields) == ("INVALID_REQUEST", ["expected_lineage"]), refused
    assert len(refused.message) < 1500


@pytest.mark.parametrize("text", ("x" * 60_000, "\N{SNOWMAN}" * 20_000), ids=("long", "wide"))
def test_a_group_that_does_not_fit_is_named_by_the_begin_of_its_uid(text):
    with Cluster(fake=True, config="limits:\n  string_bytes: 65536\n", flags=("--memory-budget", "140KB")) as cluster:
        request = Request(uids=(text,))
        request.groups[0]["prompt_tokens"] = [1] * 60
        refused = refusal(lambda: request.send(cluster.stub))
        assert refused.reason == "GROUP_TOO_LARGE" and refused.metadata["uid"].startswith(text[:10]), refused


def test_nothing_may_follow_the_end(cluster):
    request = Request()
    request.spoil_parts = lambda parts: [*parts, group_part("late")]
    assert refusal(lambda: request.send(cluster.stub)).reason == "SHORT_STREAM"
    request.spoil_parts = lambda parts: [*parts, parts[-1]]
    assert refusal(lambda: request.send(cluster.stub)).reason == "SHORT_STREAM"
    assert Request().send(cluster.stub).steps_applied == 1


def with_unknown(parts, place):
    """The parts with a field that no version knows in one of their messages."""
    parts = [type(part).FromString(part.SerializeToString()) for part in parts]
    messages = {"part": parts[0], "header": parts[0].update, "loss": parts[0].update.loss, "group": parts[1].group,
                "rollout": parts[1].group.rollouts[1], "end": parts[-1].end}
    messages[place].MergeFromString(UNKNOWN)
    return parts


@pytest.mark.parametrize("place, path", [("part", "(message)"), ("header", "update"), ("loss", "update.loss"),
                                         ("group", "groups[0]"), ("rollout", "groups[0].rollouts[1]"), ("end", "end")])
def test_a_field_that_the_server_does_not_know_is_refused_by_its_path(cluster, place, path):
    request = Request()
    request.spoil_parts = lambda parts: with_unknown(parts, place)
    refused = refusal(lambda: request.send(cluster.stub))
    assert refused.reason == "INVALID_REQUEST" and refused.fields == [path], refused
    assert "field 1022" in refused.message


def test_unknown_fields_of_what_changes_something_are_refused_and_of_queries_ignored(cluster):
    stub = cluster.stub
    for call, message in ((stub.CancelRequest, _proto.CancelRequestRequest(request_id="a")),
                          (stub.ExportWeights, _proto.ExportWeightsRequest(name="a"))):
        message.MergeFromString(UNKNOWN)
        assert refusal(lambda: call(message, timeout=60)).reason == "INVALID_REQUEST"
    for call, message in ((stub.GetModel, _proto.GetModelRequest()), (stub.GetServerInfo, _proto.GetServerInfoRequest()),
                          (stub.ListRequests, _proto.ListRequestsRequest())):
        message.MergeFromString(UNKNOWN)
        call(message, timeout=60)
    serves(cluster)
