"""A server that decides nothing, as where its disk hangs, says so to probes: first that it is not ready, then that it is not
alive, and that it is both again when it goes on. Its worker stays, whatever came meanwhile."""

import concurrent.futures
import re
import signal
import time

import pytest

from failpoints import Failpoints
from faults_test import health
from good_request import Request
from server import PATIENCE_S, Cluster, wait_for
from stemma import _proto

LOST_AFTER_S, STALLED_AFTER_S = 4, 8
LOOK_EVERY_S = 1  # the watch's; it counts at most twice as much from one look to the next
CALL_EVERY_S = 0.5
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


class Calls:
    """Calls that come one by one while the server hangs."""

    def __init__(self, cluster):
        self.cluster, self.begun_s, self.calls = cluster, time.monotonic(), []

    def come(self):
        if len(self.calls) * CALL_EVERY_S < time.monotonic() - self.begun_s:
            self.calls.append(self.cluster.stub.GetModel.future(_proto.GetModelRequest(), timeout=PATIENCE_S))

    def answers(self):
        return [call.result() for call in self.calls]


def silences(cluster, what):
    """The seconds for which the server says that it decided nothing, before it did what."""
    return [int(seconds) for seconds in re.findall(rf" ERROR the server has decided nothing for (\d+)s: it is not {what}", cluster.said())]


def test_a_server_whose_journal_hangs_is_not_ready_then_not_alive_and_both_again_when_it_goes_on(tmp_path):
    failpoints = Failpoints(tmp_path / "programs")
    flags = ("--worker-lost-after", str(LOST_AFTER_S), "--worker-stalled-after", str(STALLED_AFTER_S))
    with Cluster(fake=True, flags=flags, failpoints=failpoints) as cluster, concurrent.futures.ThreadPoolExecutor(1) as pool:
        wait_for(lambda: health(cluster, "readiness") == SERVING, "a server that is ready")
        held = failpoints.hold("row.accepted.before", 0)
        try:
            sent = pool.submit(Request().send, cluster.stub, timeout=PATIENCE_S)
            wait_for(held.exists, "a row that is not written")
            calls = Calls(cluster)
            wait_for(lambda: calls.come() or health(cluster, "stemma.v1.TrainingService") == NOT_SERVING, "the service to go off")
            assert health(cluster, "readiness") == health(cluster, "") == NOT_SERVING
            wait_for(lambda: calls.come() or health(cluster, "liveness") == NOT_SERVING, "liveness to go off")
        finally:
            held.unlink(missing_ok=True)
        for service in ("liveness", "readiness", "stemma.v1.TrainingService"):
            wait_for(lambda service=service: health(cluster, service) == SERVING, f"{service} to be on again")
        assert len(calls.answers()) * CALL_EVERY_S > LOST_AFTER_S, "enough, if each counted"
        assert sent.result(PATIENCE_S).steps_applied == 1
        for after_s, what in ((LOST_AFTER_S, "ready"), (STALLED_AFTER_S, "alive")):
            assert len(silences(cluster, what)) == 1 and after_s <= silences(cluster, what)[0] <= after_s + LOOK_EVERY_S, cluster.said()
        assert cluster.said().index("it is not ready") < cluster.said().index("it is not alive")
        assert " WARNING the server decides again, after " in cluster.said()
        assert "left: " not in cluster.said(), "its worker spoke all the time"


@pytest.mark.parametrize(("place", "code", "goes_on"), [
    ("row.accepted.before", 1, "deciding, and writing what it decides"),  # what it has is not drained
    ("spool.after", 0, "keeping a request")])                # which was refused
def test_a_server_that_is_told_to_stop_does_not_wait_for_a_disk_that_hangs(tmp_path, place, code, goes_on):
    failpoints = Failpoints(tmp_path / "programs")
    with Cluster(flags=("--drain-timeout", "1"), failpoints=failpoints) as cluster:
        held = failpoints.hold(place, 0)
        sent = cluster.stub.UpdateActor.future(iter(Request().parts()), timeout=PATIENCE_S)
        wait_for(held.exists, "a file that is not written")
        cluster.server.send_signal(signal.SIGTERM)
        assert cluster.server.wait(PATIENCE_S) == code
        assert f" WARNING stopped, though the disk of --data has not ended {goes_on}" in cluster.said(), cluster.said()
        assert sent.exception() is not None
        assert held.exists(), "control"
