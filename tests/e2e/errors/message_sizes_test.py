"""limits.message_bytes is of what clients send. The worker's results, and what the server sends to clients, have sizes of
their own: at 1 MiB results of several MiB arrive, in messages that a client with gRPC's own limit of 4 MiB receives."""

import pytest

from good_request import Request
from server import Cluster
from stemma import _proto
from stemma.config import fill_message
from stemma.groups import parts as encode

ROLLOUTS, TOKENS = 2600, 50
MESSAGE_BYTES = 1 << 20
RESULT_BYTES = ROLLOUTS * TOKENS * 16  # log-probs and entropies in fp64
CHUNK_BYTES = (2 << 20) + 1024         # kResultChunkBytes, and the group's uid


@pytest.fixture(scope="module")
def cluster():
    with Cluster(config=f"limits:\n  message_bytes: {MESSAGE_BYTES}\n", flags=("--dtype", "fp64")) as running:
        yield running


def large_group(**arrays):
    rollouts = [{"rollout_id": f"g/{i}", "response_tokens": [i % 7 + 1] * TOKENS, **arrays} for i in range(ROLLOUTS)]
    return {"uid": "g", "prompt_tokens": [1, 2, 3], "rollouts": rollouts}


def check(chunks):
    """Every rollout once, more than the clients' limit in one message, no message above what a chunk may have."""
    sizes = [chunk.ByteSize() for chunk in chunks]
    assert sum(sizes) > RESULT_BYTES > 1.9 * (1 << 20)
    assert MESSAGE_BYTES < max(sizes) <= CHUNK_BYTES, sizes
    ids = [rollout.rollout_id for chunk in chunks for rollout in chunk.rollouts]
    assert len(ids) == len(set(ids)) == ROLLOUTS


def test_results_beyond_the_clients_limit_arrive_and_the_lineage_stays(cluster):
    before = cluster.model().lineage
    header = fill_message(_proto.LogProbHeader(), {"request": {"request_id": "pass"}, "weights": "policy",
                                                   "temperature": 1.0, "entropy": True})
    sent = list(encode("log_prob", header, [large_group()], message_bytes_max=MESSAGE_BYTES // 2))
    check(list(cluster.stub.ComputeLogProb(iter(sent), timeout=300)))

    request = Request().cross_entropy()
    request.header["return_log_probs"] = True
    header = fill_message(_proto.UpdateHeader(), request.header)
    group = large_group(loss_weights=[1.0] * TOKENS)
    sent = list(encode("update", header, [group], message_bytes_max=MESSAGE_BYTES // 2))
    assert len(sent) > 3, "a request of several messages"
    status = cluster.stub.UpdateActor(iter(sent), timeout=300)
    assert status.result.steps[0].step == 1
    check(list(cluster.stub.ReadResults(_proto.ReadResultsRequest(request_id=request.id), timeout=60)))
    assert cluster.model().lineage == before, cluster.said()
