"""/metrics for Prometheus: what it says is what the calls say, it never waits for a server that hangs, and whoever comes
there can do nothing else."""

import concurrent.futures
import contextlib
import math
import pathlib
import re
import shutil
import socket
import time

import grpc
import pytest

from failpoints import Failpoints
from faults_test import submit, wait_until
from good_request import Request
from e2e.certificates import Certificates
from metrics_page import address, ask, read
from server import MODEL, PATIENCE_S, Cluster, wait_for
from stemma import _proto

LISTEN = ("--metrics-listen", "127.0.0.1:0")
PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "operate.md").read_text(encoding="utf-8")
IDLE_S = 5  # after which a client that sends nothing is let go
READS_AT_A_TIME = 4
ANSWER_S = 2  # after which a server that has not answered is said to hang


def total(steps, name):
    return math.fsum(step.metrics[name] for step in steps)


def pass_parts():
    header = _proto.GroupPart()
    header.log_prob.weights, header.log_prob.temperature = "policy", 1.0
    return [header] + Request().parts()[1:]


def test_numbers_are_those_of_the_calls():
    with Cluster(model=MODEL, flags=LISTEN) as cluster:
        before = read(cluster)
        assert before["stemma_steps_total"]["applied"] == 0 and "stemma_last_step" not in before
        assert before["stemma_newest_checkpoint_step"] == before["stemma_checkpoint_saves_failed_total"] == 0
        assert set(before["stemma_requests_refused_total"].values()) == {0}
        requests = [Request(), Request()]
        for request in requests:
            request.header["request"]["schedule"] = "REUSE"  # so that a prefix takes seconds
        steps = [step for request in requests for step in request.send(cluster.stub).result.steps]
        cluster.stub.SaveCheckpoint(_proto.SaveCheckpointRequest(name="kept"), timeout=PATIENCE_S)
        for _ in range(2):
            with contextlib.suppress(grpc.RpcError):  # the second finds the name taken
                cluster.stub.ExportWeights(_proto.ExportWeightsRequest(name="out"), timeout=PATIENCE_S)
        for _ in range(3):
            assert len(list(cluster.stub.ComputeLogProb(iter(pass_parts())))) == 2
        assert cluster.stub.VerifyGroup(iter(Request().parts())).gradient_norm > 0
        after, model = read(cluster), cluster.model()
        assert after["stemma_model_step"] == model.step == after["stemma_newest_checkpoint_step"] == 2
        assert after["stemma_updates_accepted_total"] == 2
        assert after["stemma_updates_ended_total"] == {"done": 2, "failed": 0, "cancelled": 0, "rolled_back": 0}
        assert after["stemma_steps_total"] == {"applied": 2, "skipped_nonfinite": 0, "skipped_empty": 0}
        assert after["stemma_checkpoints"] == after["stemma_checkpoints_saved_total"] == 1
        assert after["stemma_workers"] == after["stemma_ranks"] == after["stemma_generations_total"] == 1
        assert after["stemma_jobs_open"] == after["stemma_jobs_open_bytes"] == after["stemma_steps_behind"] == 0
        # Written with 17 digits or fewer: what is read may differ in the last one.
        for phase, seconds in after["stemma_phase_seconds_total"].items():
            assert seconds == pytest.approx(total(steps, f"time/{phase}_s"), rel=1e-15), phase
            assert seconds > 0, phase
        for kind, tokens in after["stemma_tokens_total"].items():
            assert tokens == total(steps, f"prefix/tokens_{kind}") > 0, kind
        assert after["stemma_exports_total"] == {"done": 1, "failed": 1, "cancelled": 0}
        assert after["stemma_log_prob_passes_total"] == {"done": 3, "failed": 0, "cancelled": 0}
        assert after["stemma_verifications_total"] == {"done": 1, "failed": 0, "cancelled": 0}
        assert after["stemma_flops_total"] == total(steps, "perf/actor/flops") > 0
        assert after["stemma_last_step"] == pytest.approx(dict(steps[-1].metrics), rel=1e-15)


def test_what_ran_for_its_log_probs_alone_is_no_applied_work():
    with Cluster(model=MODEL, flags=LISTEN) as cluster:
        request = Request()
        request.header["return_log_probs"] = True
        del request.header["loss"]["kl_loss_coef"], request.header["loss"]["kl_loss_type"], request.header["ref"]
        for rollout in request.rollouts():
            rollout["advantage"] = 0.0
            del rollout["ref_log_prob"]
        assert total(request.send(cluster.stub).result.steps, "prefix/tokens_computed") > 0
        after = read(cluster)
        assert after["stemma_steps_total"] == {"applied": 0, "skipped_nonfinite": 0, "skipped_empty": 1}
        work = [after["stemma_flops_total"], *after["stemma_tokens_total"].values(), *after["stemma_phase_seconds_total"].values()]
        assert not any(work) and "stemma_last_step" not in after, after


def test_the_page_lists_every_metric_and_no_other(tmp_path):
    """With TLS, of which some tell."""
    listed = set(re.findall(r"(?m)^\| `(stemma_\w+)`", PAGE))
    files = Certificates(tmp_path)
    tls = ("--tls-ca", str(files.ca), "--tls-cert", str(files.server.cert), "--tls-key", str(files.server.key))
    of_client = ("--tls-ca", str(files.ca), "--tls-cert", str(files.client.cert), "--tls-key", str(files.client.key))
    credentials = grpc.ssl_channel_credentials(files.ca.read_bytes(), files.client.key.read_bytes(), files.client.cert.read_bytes())
    with Cluster(model=MODEL, flags=(*LISTEN, *tls), worker_flags=("--once", *of_client), credentials=credentials) as cluster:
        Request().send(cluster.stub)
        cluster.stub.SaveCheckpoint(_proto.SaveCheckpointRequest(name="kept"), timeout=PATIENCE_S)
        found = read(cluster)
        assert set(found) == listed
        for name, labels in re.findall(r"(?m)^\| `(stemma_\w+)`, by `\w+`: ([^|]*)", PAGE):
            assert set(re.findall(r"`(\w+)`", labels)) == set(found[name]), name


def test_losses_are_counted_and_states_told():
    with Cluster(fake=True, flags=LISTEN) as cluster:
        assert Request().send(cluster.stub).steps_applied == 1
        request = submit(cluster, "hang")
        wait_until(cluster, request, "PREPARING")
        running = read(cluster)
        assert running["stemma_model_state"]["stepping"] == 1 and sum(running["stemma_model_state"].values()) == 1
        assert running["stemma_jobs_open"] == 1 and running["stemma_jobs_open_bytes"] > 0
        assert running["stemma_lineages_lost_total"] == 0
        cluster.worker.kill()
        cluster.lose_worker()
        lost = read(cluster)
        assert lost["stemma_model_state"]["recovering"] == 1 and lost["stemma_workers"] == 0 and lost["stemma_ranks"] == 1
        assert lost["stemma_lineages_lost_total"] == 1 and lost["stemma_model_step"] == 0
        assert lost["stemma_steps_total"]["applied"] == 1, "a counter never falls"
        assert lost["stemma_updates_ended_total"] == {"done": 1, "failed": 0, "cancelled": 0, "rolled_back": 1}
        assert lost["stemma_jobs_open"] == 0
        cluster.start_worker()
        assert read(cluster)["stemma_generations_total"] == 2


def test_steps_are_behind_from_the_loss_on_and_checkpoints_that_are_only_found_are_not_saved():
    with Cluster(model=MODEL, flags=LISTEN) as cluster:
        Request().send(cluster.stub)
        cluster.stub.SaveCheckpoint(_proto.SaveCheckpointRequest(name="kept"), timeout=PATIENCE_S)
        for _ in range(2):
            Request().send(cluster.stub)
        assert read(cluster)["stemma_steps_behind"] == 0
        started_s = read(cluster)["stemma_start_time_seconds"]
        assert abs(time.time() - started_s) < 2 * PATIENCE_S
        cluster.worker.kill()
        cluster.lose_worker()
        lost = read(cluster)
        assert lost["stemma_steps_behind"] == 2 and lost["stemma_model_step"] == 3 and lost["stemma_lineages_lost_total"] == 0
        cluster.kill()
        cluster.restart_server()
        again = read(cluster)
        assert again["stemma_steps_behind"] == 2 and again["stemma_start_time_seconds"] > started_s
        assert again["stemma_checkpoints"] == 1 and again["stemma_checkpoints_saved_total"] == 0
        cluster.start_worker()
        wait_for(lambda: read(cluster)["stemma_steps_behind"] == 0, "the steps to be computed again")
        assert read(cluster)["stemma_steps_total"]["applied"] == 0, "they were counted by the server that made them"


def test_a_checkpoint_that_is_copied_in_was_not_saved(tmp_path):
    with Cluster(model=MODEL, flags=LISTEN, data=tmp_path / "first") as cluster:
        Request().send(cluster.stub)
        cluster.stub.SaveCheckpoint(_proto.SaveCheckpointRequest(name="kept"), timeout=PATIENCE_S)
    shutil.copytree(tmp_path / "first" / "checkpoints", tmp_path / "second" / "checkpoints")
    with Cluster(model=MODEL, flags=LISTEN, data=tmp_path / "second") as cluster:
        found = read(cluster)
        assert found["stemma_checkpoints"] == found["stemma_newest_checkpoint_step"] == 1
        assert found["stemma_checkpoints_saved_total"] == 0


def test_a_save_that_fails_is_counted():
    with Cluster(model=MODEL, flags=LISTEN) as cluster:
        Request().send(cluster.stub)
        (cluster.root / "data" / "checkpoints").rmdir()
        with pytest.raises(grpc.RpcError):
            cluster.stub.SaveCheckpoint(_proto.SaveCheckpointRequest(name="kept"), timeout=PATIENCE_S)
        found = read(cluster)
        assert found["stemma_checkpoint_saves_failed_total"] == 1 and found["stemma_checkpoints_saved_total"] == 0


def test_a_server_that_hangs_is_said_to_and_everything_is_there_when_it_goes_on(tmp_path):
    failpoints = Failpoints(tmp_path / "programs")
    with Cluster(fake=True, flags=LISTEN, failpoints=failpoints) as cluster:
        assert read(cluster)["stemma_answers"] == 1
        held = failpoints.hold("row.accepted.before", 0)
        request = Request()
        sent = cluster.stub.UpdateActor.future(iter(request.parts()), timeout=PATIENCE_S)
        try:
            wait_for(held.exists, "a row that is not written")
            with concurrent.futures.ThreadPoolExecutor(READS_AT_A_TIME) as pool:
                begun_s = time.monotonic()
                assert all("stemma_model_step" not in found for found in pool.map(lambda _: read(cluster), range(READS_AT_A_TIME)))
                assert time.monotonic() - begun_s < READS_AT_A_TIME * ANSWER_S, "they wait side by side"
            for _ in range(2):
                begun_s = time.monotonic()
                assert set(read(cluster)) == {"stemma_info", "stemma_start_time_seconds", "stemma_answers"}
                assert time.monotonic() - begun_s < PATIENCE_S / 2
            assert read(cluster)["stemma_answers"] == 0
        finally:
            held.unlink(missing_ok=True)
        assert sent.result().steps_applied == 1
        wait_for(lambda: read(cluster).get("stemma_updates_accepted_total") == 1, "the numbers")


def test_nothing_else_is_there():
    with Cluster(fake=True, flags=LISTEN) as cluster:
        for method, path in (("GET", "/"), ("GET", "/metrics/../../../../../../etc/passwd"), ("GET", "/ready"), ("PUT", "/metrics"),
                             ("DELETE", "/metrics"), ("POST", "/metrics"), ("PUT", "/x"), ("PROPFIND", "/"), ("MKCOL", "/x")):
            status, text = ask(cluster, path, method)
            assert status >= 400 and "root:" not in text and "stemma_" not in text, (method, path, status)
        assert read(cluster)["stemma_answers"] == 1
    with Cluster(fake=True) as quiet:
        assert "metrics" not in (quiet.root / "ready").read_text() and "/metrics" not in quiet.said()


def test_clients_that_say_nothing_or_nonsense_hold_up_nobody_for_long():
    with Cluster(fake=True, flags=LISTEN) as cluster, contextlib.ExitStack() as held:
        for sent in (b"\x00\xff" * 5000, b"GET /metrics HTTP/9.9\r\n\r\n", b"A" * 200_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with socket.create_connection(address(cluster), timeout=PATIENCE_S) as nonsense, contextlib.suppress(OSError):
                nonsense.sendall(sent)
        for _ in range(2 * READS_AT_A_TIME):
            held.enter_context(socket.create_connection(address(cluster)))
        begun_s = time.monotonic()
        assert read(cluster)["stemma_answers"] == 1
        assert time.monotonic() - begun_s < 4 * IDLE_S
        assert Request().send(cluster.stub).steps_applied == 1
