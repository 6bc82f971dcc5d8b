"""B5: a call of one message takes no more of the server's memory than its bytes."""

import pytest

from hostile.hostile_cluster import Cluster, memory_mib, refusal, serves
from stemma import _proto

SERVICE = "/stemma.v1.TrainingService/"
UNARY = ("GetServerInfo", "GetModel", "GetRequest", "ListRequests", "CancelRequest", "ExportWeights", "DeleteExport",
         "SaveCheckpoint", "LoadCheckpoint", "ListCheckpoints", "VerifyCheckpoint", "PinCheckpoint", "DeleteCheckpoint")
EMPTY_FIELDS = b"\x7a\x00" * (10 << 20)  # 20 MiB of unknown fields, each of which takes some 60 bytes once it is decoded
ROOM_MIB = 200  # what gRPC gathers of one message, twice, and what its heap keeps


@pytest.fixture(scope="module")
def cluster():
    with Cluster(fake=True) as running:
        yield running


@pytest.mark.parametrize("name", UNARY)
def test_b5_a_call_of_many_empty_fields_takes_no_more_than_its_bytes(cluster, name):
    before = memory_mib(cluster)
    error = refusal(lambda: cluster.channel.unary_unary(SERVICE + name)(EMPTY_FIELDS, timeout=60))
    assert error.reason == "LIMIT_EXCEEDED", error
    assert memory_mib(cluster) < before + ROOM_MIB
    serves(cluster)


def test_b5_so_does_a_call_for_results(cluster):
    before = memory_mib(cluster)
    error = refusal(lambda: list(cluster.channel.unary_stream(SERVICE + "ReadResults")(EMPTY_FIELDS, timeout=60)))
    assert error.reason == "LIMIT_EXCEEDED" and memory_mib(cluster) < before + ROOM_MIB, error
    serves(cluster)


@pytest.mark.parametrize("name", UNARY)
def test_b5_what_is_no_message_is_said_so(cluster, name):
    error = refusal(lambda: cluster.channel.unary_unary(SERVICE + name)(b"\x0a", timeout=60))
    assert error.reason == "INVALID_REQUEST", error


def test_b5_a_newer_clients_question_is_answered(cluster):
    answer = cluster.channel.unary_unary(SERVICE + "GetModel", response_deserializer=_proto.message_class("stemma.v1.ModelInfo").FromString)(b"\x7a\x00" * 100)
    assert answer.lineage == cluster.model().lineage
