"""A worker that speaks but whose engine hangs: its heartbeats come, its progress stands still, and it is given up."""

import concurrent.futures
import re
import signal
import time

import pytest
import stemma

from faults_test import submit, wait_until
from good_request import Request, refusal
from server import PATIENCE_S, Cluster, start, wait_for
from stemma import _connection, _proto

STALLED_AFTER_S = 5
LOOK_EVERY_S = 1  # the server's; it counts at most twice as much from one look to the next


@pytest.fixture
def cluster():
    with Cluster(fake=True, flags=("--worker-lost-after", "4", "--worker-stalled-after", str(STALLED_AFTER_S))) as running:
        yield running


def test_a_hung_engine_loses_its_worker_and_the_next_one_serves(cluster):
    request = submit(cluster, "stuck")
    cluster.lose_worker()
    still = re.search(r"PREPARE of step 1 .* stands still for (\d+)s", cluster.said())
    assert still and STALLED_AFTER_S <= int(still[1]) <= STALLED_AFTER_S + LOOK_EVERY_S + 1, cluster.said()
    cluster.start_worker()
    wait_until(cluster, request, "PREPARING")  # its second attempt
    cluster.stub.CancelRequest(_proto.CancelRequestRequest(request_id=request.id))
    cluster.lose_worker()  # it hangs still, whatever its client was told
    cluster.start_worker()
    refused = refusal(lambda: cluster.stub.ExportWeights(_proto.ExportWeightsRequest(name="stuck"), timeout=60))
    assert refused.reason == "ATTEMPTS_EXHAUSTED" and "stands still" in refused.message, refused
    cluster.lose_worker()
    assert "no heartbeat" not in cluster.said(), "it spoke all the time"
    cluster.start_worker()
    assert Request().send(cluster.stub).steps_applied == 1


@pytest.mark.parametrize("who", ["the machine", "the server alone"])
def test_processes_that_were_stopped_together_lose_nothing(cluster, who):
    request = submit(cluster, "gate")
    wait_until(cluster, request, "PREPARING")
    lineage = cluster.model().lineage
    stopped = [cluster.server] if who == "the server alone" else [cluster.worker, cluster.server]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    time.sleep(STALLED_AFTER_S + 1)  # more than a worker may be silent or stand still
    for process in reversed(stopped):
        process.send_signal(signal.SIGCONT)
    (cluster.root / "data" / "gate").touch()
    assert wait_until(cluster, request, "DONE").result.steps[0].attempts == 1
    assert cluster.model().lineage == lineage and cluster.worker.poll() is None, cluster.said()


def test_a_worker_that_was_given_up_writes_no_export_when_it_goes_on():
    with Cluster(flags=("--worker-lost-after", "4")) as cluster:
        stopped, exports = cluster.worker, cluster.root / "data" / "exports"
        stopped.send_signal(signal.SIGSTOP)
        refused = refusal(lambda: cluster.stub.ExportWeights(_proto.ExportWeightsRequest(name="x"), timeout=PATIENCE_S))
        assert refused.reason == "ATTEMPTS_EXHAUSTED", refused
        cluster.start_worker()
        assert Request().send(cluster.stub).steps_applied == 1
        stopped.send_signal(signal.SIGCONT)
        stopped.wait(PATIENCE_S)  # it has the export's message still, and hears of its end as it answers
        assert not (exports / "x").exists(), "the weights of step 0"
        assert cluster.stub.ExportWeights(_proto.ExportWeightsRequest(name="x"), timeout=PATIENCE_S).step == 1
        wait_for(lambda: [path.name for path in exports.iterdir()] == ["x"], "what nobody needs to go")


def test_a_call_that_waits_for_a_server_that_stands_still_ends(cluster, monkeypatch):
    request = submit(cluster, "gate")
    wait_until(cluster, request, "PREPARING")
    with monkeypatch.context() as hasty:
        hasty.setattr(_connection, "_PING_MS", 3000)  # the first, before which the server is stopped
        hasty.setattr(_connection, "_PING_ANSWER_MS", 500)
        client = stemma.Client(cluster.address, retries=0)
    with client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        waits = pool.submit(client.attach(request.id).result)
        cluster.server.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(stemma.StemmaError, match="connection to the server at .* was lost") as lost:
                waits.result(timeout=PATIENCE_S)
            assert lost.value.code == "UNAVAILABLE"
        finally:
            cluster.server.send_signal(signal.SIGCONT)
    (cluster.root / "data" / "gate").touch()
    with stemma.Client(cluster.address) as patient:  # a busy machine may answer later than the hasty one waits
        assert len(patient.attach(request.id).result().steps) == 1


def test_the_order_of_the_times_is_checked_at_the_start(tmp_path):
    code, said = start(tmp_path, "--worker-lost-after", "20", "--worker-stalled-after", "20", "--model", "none")
    assert code == 2 and "--worker-stalled-after is 20, not more than --worker-lost-after, which is 20" in said, said
