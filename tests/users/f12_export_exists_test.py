"""F12: an export whose name is taken says so, with the name and what to do."""

import grpc
import pytest
import stemma
from e2e.errors.good_request import Request, refusal
from e2e.errors.server import PATIENCE_S, Cluster, wait_for
from stemma import _proto


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        yield running


def refused(call):
    with pytest.raises(stemma.StemmaError) as raised:
        call()
    error = raised.value
    assert (error.code, error.reason) == ("ALREADY_EXISTS", "EXPORT_EXISTS"), error
    return error


def assert_says(error, name):
    assert error.metadata["name"] == name and f'"{name}"' in error.message and f"/exports/{name}" in error.message
    assert "choose another name, or remove it first" in error.message


def test_a_name_that_exists_is_refused_until_it_is_gone(cluster):
    with stemma.Client(cluster.address) as client:
        path = client.export("step-1")
        assert_says(refused(lambda: client.export("step-1")), "step-1")
        assert client.export("step-2") == path.replace("step-1", "step-2")


def test_of_two_exports_of_one_name_in_the_queue_one_is_refused_at_once(cluster):
    long = Request(("g0",))
    long.header["ppo_epochs"] = 4000
    long.header["request"]["wait_ms"] = 0
    long.send(cluster.stub)
    exports = [cluster.stub.ExportWeights.future(_proto.ExportWeightsRequest(name="twice")) for _ in range(2)]
    refused_one = wait_for(lambda: next((e for e in exports if e.done()), None), "a refusal")
    assert not all(e.done() for e in exports), "the other one waits behind the long request"
    error = refusal(refused_one.result)
    assert (error.code, error.reason) == (grpc.StatusCode.ALREADY_EXISTS, "EXPORT_EXISTS")
    assert_says(error, "twice")
    cluster.stub.CancelRequest(_proto.CancelRequestRequest(request_id=long.id))
    written = next(e for e in exports if e is not refused_one).result(PATIENCE_S)
    assert written.path.endswith("/exports/twice") and written.lineage == cluster.model().lineage
