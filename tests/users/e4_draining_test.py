"""E4: what a signal does to what runs and to what waits."""

import signal
import time

import stemma
from e2e.errors.good_request import Request, refusal
from e2e.errors.server import BUILD, MODEL, PATIENCE_S, Cluster, wait_for
from e2e.own_loopback import channel_to
from stemma import _proto
from stemma._stub import TrainingStub

LONG_S = "600"  # nothing of a test lasts as long
SAME_STOP_S = 1.1  # signals within a second are of one stop


def a_cluster(drain_timeout=LONG_S, fake=True):
    return Cluster(fake=fake, flags=("--drain-timeout", drain_timeout))


class Sent:
    """An UpdateActor that is under way: its call waits for the outcome, so that no answer can be missed."""

    def __init__(self, stub, uid, epochs=1):
        request = Request((uid,))
        request.header["ppo_epochs"] = epochs
        self._stub, self._id = stub, request.id
        self._call = stub.UpdateActor.future(iter(request.parts()))

    def status(self):
        listed = _proto.to_dict(self._stub.ListRequests(_proto.ListRequestsRequest()))["requests"]
        return {r["request_id"]: r for r in listed}.get(self._id, {"state": "", "steps_applied": 0})

    def wait_until(self, state):
        wait_for(lambda: self.status()["state"] == state, state)
        return self

    def wait_for_a_step(self):
        wait_for(lambda: self.status()["steps_applied"] > 0, "a first step")
        return self

    def done(self):
        return self._call.done()

    def result(self):
        return self._call.result(PATIENCE_S).result

    def error(self):
        return refusal(lambda: self._call.result(PATIENCE_S))


def terminate(cluster):
    cluster.server.send_signal(signal.SIGTERM)
    wait_for(lambda: "draining: at most" in cluster.said(), "the server to drain")


def open_gate(cluster):
    (cluster.root / "data" / "gate").touch()


def assert_ends_clean(cluster):
    assert cluster.server.wait(PATIENCE_S) == 0 and cluster.worker.wait(PATIENCE_S) == 0, cluster.said()


def test_what_runs_finishes_its_step_and_what_waits_answers_draining():
    with a_cluster() as cluster:
        running = Sent(cluster.stub, "gate").wait_until("PREPARING")
        queued = Sent(cluster.stub, "g1").wait_until("ACCEPTED")
        export = cluster.stub.ExportWeights.future(_proto.ExportWeightsRequest(name="late"))
        terminate(cluster)
        assert queued.error().reason == "DRAINING"
        assert refusal(lambda: export.result(PATIENCE_S)).reason == "DRAINING"
        assert Sent(cluster.stub, "g2").error().reason == "DRAINING", "nothing new is taken"
        assert not running.done(), "the step still runs"
        open_gate(cluster)
        assert [step.step for step in running.result().steps] == [1]
        assert_ends_clean(cluster)


def test_a_request_of_several_steps_ends_after_the_one_that_runs():
    with a_cluster() as cluster:
        request = Sent(cluster.stub, "gate", epochs=3).wait_until("PREPARING")
        terminate(cluster)
        open_gate(cluster)
        error = request.error()
        assert error.reason == "DRAINING" and "after step 1 of 3" in error.message, error
        assert_ends_clean(cluster)


def test_what_does_not_end_in_time_answers_draining_too():
    with a_cluster(drain_timeout="1") as cluster:
        request = Sent(cluster.stub, "hang").wait_until("PREPARING")
        cluster.server.send_signal(signal.SIGTERM)
        error = request.error()
        assert error.reason == "DRAINING" and "did not end in time" in error.message, error
        assert_ends_clean(cluster)


def test_a_second_signal_ends_at_once():
    with a_cluster() as cluster:
        Sent(cluster.stub, "hang").wait_until("PREPARING")
        terminate(cluster)
        time.sleep(SAME_STOP_S)
        cluster.server.send_signal(signal.SIGTERM)
        assert cluster.server.wait(PATIENCE_S) == 1
        assert "leaving at once" in cluster.said()


def test_signals_that_come_together_are_one():
    """A service manager signals every process of a service, and `stemma local` passes its own on."""
    with a_cluster() as cluster:
        running = Sent(cluster.stub, "gate").wait_until("PREPARING")
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            cluster.server.send_signal(number)
        wait_for(lambda: "draining: at most" in cluster.said(), "the server to drain")
        open_gate(cluster)
        assert [step.step for step in running.result().steps] == [1]
        assert_ends_clean(cluster)


def test_many_real_steps_end_after_one_of_them():
    with a_cluster(fake=False) as cluster:
        request = Sent(cluster.stub, "g0", epochs=4000).wait_for_a_step()
        terminate(cluster)
        error = request.error()
        assert error.reason == "DRAINING" and "of 4000" in error.message, error
        assert_ends_clean(cluster)


def test_local_server_close_ends_after_the_step_that_runs(tmp_path):
    server = stemma.LocalServer(MODEL, binary=BUILD / "bin/stemma", threads=1, log=tmp_path / "log", drain_timeout_s=600)
    with channel_to(server.address) as channel:
        request = Sent(TrainingStub(channel), "g0", epochs=4000).wait_for_a_step()
        server.close()
        error = request.error()
    assert error.reason == "DRAINING" and "of 4000" in error.message, error
    assert server.process.returncode == 0
    assert "what runs has 10m to end" in (tmp_path / "log").read_text()
