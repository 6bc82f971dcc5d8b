"""A2: who may be a worker, and what a worker may do. A client never speaks the worker's protocol; with the secret, nothing
that is sent ends the server, reaches a client unchecked, or keeps the next honest worker from serving."""

import math
import os
import random
import socket

import grpc
import pytest

from e2e.errors.good_request import Request, group, refusal
from e2e.errors.played_worker import PlayedWorker, ask_for_proof, proof_of
from e2e.errors.server import MODEL, Cluster, start, wait_for
from e2e.own_loopback import channel_to
from stemma import _proto
from stemma.groups import parts

from liar import Liar

CASES = int(os.environ.get("STEMMA_HOSTILE_CASES", "120"))  # of the random campaign
SEED = int(os.environ.get("STEMMA_HOSTILE_SEED", "20"))
# The bytes are of clients' messages, not of workers'. A played worker has no weights that could be computed again.
LIMITS = "durability: rewind\nlimits:\n  message_bytes: 65536\n"
HUGE = "x" * (1 << 20)


@pytest.fixture(scope="module")
def cluster():
    with Cluster(config=LIMITS, worker=False, flags=("--reflection",)) as running:
        yield running


def serves(cluster):
    """The server lives, takes an honest worker, and makes a step with it."""
    assert cluster.server.poll() is None, cluster.said()
    cluster.model()

    def honest():
        worker = PlayedWorker(cluster)
        if worker.join():
            return worker
        worker.close()
        return None

    with wait_for(honest, "an honest worker to be taken") as worker:
        future = cluster.stub.UpdateActor.future(iter(Request().parts()))
        worker.make_step()
        assert future.result(60).result.steps[0].step >= 1
    wait_for(lambda: workers(cluster) == 0, "the worker to be gone")


def workers(cluster):
    return cluster.stub.GetServerInfo(_proto.GetServerInfoRequest()).workers_connected


def end_of(worker):
    with worker:
        return worker.end()


NONCE = "stemma-nonce"
PROOF = "stemma-proof"


@pytest.mark.parametrize("metadata", [
    [], [("authorization", "Bearer {secret}")], [(PROOF, "{proof}")], [(NONCE, ""), (PROOF, "{proof}")],
    [(NONCE, "{nonce}"), (PROOF, "")], [(NONCE, "{nonce}"), (PROOF, "{secret}")], [(NONCE, "{nonce}"), (PROOF, "{proof}0")],
    [(NONCE, "{nonce}"), (PROOF, "{wrong}")], [(NONCE, "{nonce}"), (PROOF, "{servers}")],
    [(NONCE, "{nonce}"), (PROOF, "{proof}"), (PROOF, "{proof}")], [(NONCE, "{nonce}"), (NONCE, "{nonce}"), (PROOF, "{proof}")],
    [(NONCE, "{own}"), (PROOF, "{of_own}")], [(NONCE, "{nonce}x"), (PROOF, "{proof}")],
], ids=range(13))
def test_a2_without_the_secret_nobody_is_a_worker_and_the_log_names_the_peer(cluster, metadata):
    secret = cluster.secret_file.read_text().strip()
    own = "0" * 64
    with channel_to(cluster.worker_address) as channel:
        nonce, servers = ask_for_proof(channel, own, secret)
    values = {"secret": secret, "nonce": nonce, "servers": servers, "own": own, "proof": proof_of(secret, "worker", nonce),
              "wrong": proof_of(secret[:-1], "worker", nonce), "of_own": proof_of(secret, "worker", own)}
    metadata = [(key, value.format(**values)) for key, value in metadata]
    before = cluster.said().count("is refused: ")
    worker = PlayedWorker(cluster, metadata=metadata)
    worker.register()
    assert end_of(worker)[0] == grpc.StatusCode.UNAUTHENTICATED
    said = wait_for(lambda: cluster.said().count("is refused: ") > before and cluster.said(), "the line in the log")
    assert "ipv4:127.0.0.1:" in said.split("is refused: ")[-2].splitlines()[-1], said
    assert secret not in said and workers(cluster) == 0


def header(name, value):
    """A field of HPACK that no table has."""
    return b"".join([b"\0", *(bytes([len(text)]) + text.encode() for text in (name, value))])


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def test_a2_a_connection_that_is_cut_in_its_headers_is_none_without_the_secret(cluster):
    """gRPC makes a call of the headers that came, and the log has no warning of somebody who knows no secret."""
    block = b"".join(header(*field) for field in [
        (":method", "POST"), (":scheme", "http"), (":path", "/stemma.internal.v1.WorkerService/Session"),
        (":authority", "server"), ("te", "trailers"), ("content-type", "application/grpc")])
    rest = len(header("stemma-nonce", "0" * 64))
    headers = frame(1, 4, 1, block + bytes(rest))[:-rest]
    before = cluster.said()
    host, port = cluster.worker_address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + headers)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    said = wait_for(lambda: "ended before its proof came" in cluster.said() and cluster.said(), "the line in the log")[len(before):]
    assert " INFO " in said and " WARNING " not in said, said


def test_a2_each_listener_answers_its_own_service_only(cluster):
    assert end_of(PlayedWorker(cluster, address=cluster.address, metadata=[]))[0] == grpc.StatusCode.UNIMPLEMENTED
    assert end_of(PlayedWorker(cluster, address=cluster.ops_address, metadata=[]))[0] == grpc.StatusCode.UNIMPLEMENTED
    info, health, reflect = ("/stemma.v1.TrainingService/GetServerInfo", "/grpc.health.v1.Health/Check",
                             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    for address, methods in ((cluster.worker_address, (info, health, reflect)), (cluster.ops_address, (info, reflect)),
                             (cluster.address, (health,))):
        with channel_to(address) as channel:
            for method in methods:
                error = refusal(lambda: channel.unary_unary(method)(b"", timeout=60))
                assert error.code == grpc.StatusCode.UNIMPLEMENTED, (address, method, error)
    listed = next(iter(cluster.channel.stream_stream(reflect)(iter([b"\x3a\x00"]))))
    assert b"stemma.v1.TrainingService" in listed and b"orkerService" not in listed


def test_a2_the_server_takes_no_worker_without_a_secret_of_its_own(tmp_path):
    model = ("--model", str(MODEL))
    (tmp_path / "secret").touch(0o600)
    code, text = start(tmp_path, *model)
    assert code == 2 and "secret" in text, text
    (tmp_path / "secret").write_text("0" * 64)
    for mode in (0o640, 0o604, 0o620, 0o666):
        (tmp_path / "secret").chmod(mode)
        code, text = start(tmp_path, *model)
        assert code == 2 and "chmod 600" in text and "0" * 64 not in text, text
    (tmp_path / "secret").unlink()
    (tmp_path / "secret").symlink_to(tmp_path / "nowhere")
    assert start(tmp_path, *model)[0] == 2


def test_a2_the_workers_messages_have_a_limit_of_their_own(cluster):
    with PlayedWorker(cluster) as worker:
        assert worker.join()
        call = log_prob_call(cluster, tokens=25, rollouts=400)
        job = worker.receive("log_prob").log_prob.id
        rollouts = [{**numbers(200, f"g0/{i}"), "entropy": bytes(200)} for i in range(400)]
        worker.send(**results(job, rollouts, dtype=2))
        worker.send(log_prob_done={"id": job})
        assert sum(len(r.log_probs) for chunk in call for r in chunk.rollouts) == 80_000 > 65536
    serves(cluster)


# ------------------------------------------------------------------------------------------------ with the secret, by hand


def log_prob_call(cluster, tokens=3, rollouts=2):
    request = Request(("g0",))
    request.groups = [group("g0", num_rollouts=rollouts)]
    header = _proto.LogProbHeader(weights="policy", temperature=1.0)
    for rollout in request.groups[0]["rollouts"]:
        for unread in ("old_log_probs", "ref_log_prob", "advantage", "response_mask"):
            rollout.pop(unread)
        rollout["response_tokens"] = [5] * tokens
    return cluster.stub.ComputeLogProb(iter(parts("log_prob", header, request.groups)), timeout=60)


def failure(code, reason, message="m"):
    return {"code": code, "reason": reason, "message": message}


BEFORE_REGISTER = [
    {}, {"ready": {}}, {"heartbeat": {}}, {"vote": {"yes": True}}, {"applied": {}}, {"results": {"id": "x"}},
    {"log_prob_done": {"id": "x"}}, {"verify_done": {"id": "x"}}, {"export_done": {"id": "x"}}, {"refused": {"message": "no"}},
    {"register": {}}, {"register": {"incarnation": HUGE}}, {"register": {"incarnation": "a/b"}},
    {"register": {"incarnation": "a", "host": HUGE}}, {"register": {"incarnation": "a", "device": "../x"}},
    {"register": {"incarnation": "a", "memory_free_bytes": (1 << 64) - 1}},
    {"register": {"incarnation": "a", "host_free_bytes": 1 << 63, "memory_free_bytes": 1 << 40}},
]


@pytest.mark.parametrize("message", BEFORE_REGISTER, ids=range(len(BEFORE_REGISTER)))
def test_a2_a_session_begins_with_a_sound_register(cluster, message):
    worker = PlayedWorker(cluster)
    worker.send(**message)
    assert end_of(worker)[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert workers(cluster) == 0 and cluster.server.poll() is None
    assert "broke the protocol" in cluster.said()


IDLE = [{}, {"ready": {}}, {"ready": {"config": {"threads": 1 << 31}}},
        {"register": {"incarnation": "twice", "memory_free_bytes": 1 << 34}}, {"heartbeat": {"phase": HUGE}},
        {"results": {"id": HUGE}}, {"export_done": {"id": HUGE}}, {"log_prob_done": {"id": HUGE}},
        {"verify_done": {"id": HUGE}}, {"verify_done": {"gradients": [{"name": "../x"}]}}, {"verify_done": {"dense_s": -1.0}},
        {"vote": {"key": {"request_id": HUGE}}}, {"vote": {"key": {"incarnation": HUGE}}},
        {"vote": {"grad_norm_squared": -1.0}}, {"applied": {"apply_s": math.nan}}, {"applied": {"apply_s": -1.0}},
        {"vote": {"sums": {"suffix_s": math.nan}}}, {"vote": {"sums": {"prefix_forward_s": -1.0}}},
        {"vote": {"sums": {"state_bytes": (1 << 64) - 1}}}, {"vote": {"yes": True, "no_reason": "NONFINITE"}},
        {"refused": {"key": {"request_id": HUGE}}}]


@pytest.mark.parametrize("message", IDLE, ids=range(len(IDLE)))
def test_a2_a_worker_that_breaks_the_protocol_loses_its_session(cluster, message):
    worker = PlayedWorker(cluster)
    assert worker.join()
    worker.send(**message)
    assert end_of(worker)[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert workers(cluster) == 0 and cluster.server.poll() is None


def test_a2_what_is_late_is_ignored_in_words(cluster):
    key = {"request_id": "nobody", "step": 3, "attempt": 1}
    with PlayedWorker(cluster) as worker:
        assert worker.join()
        for message in ({"vote": {"key": key, "yes": True}}, {"applied": {"key": key}}, {"refused": {"key": key}},
                        {"results": {"id": "nobody"}}, {"export_done": {"id": "nobody"}}, {"verify_done": {"id": "~v"}},
                        {"log_prob_done": {"id": "~"}}):
            worker.send(**message)
        wait_for(lambda: "the end of ~, which does not run" in cluster.said(), "the last one to be ignored")
        assert workers(cluster) == 1
        assert "ignored: the worker's vote on step 3 of request nobody (attempt 1), which is over" in cluster.said()
    wait_for(lambda: workers(cluster) == 0, "the worker to be gone")


@pytest.mark.parametrize("lie", [
    lambda job: {"results": {"id": job, "group": {"uid": "g0", "dtype": 1}}},
    lambda job: {"results": {"id": job, "group": {"uid": "g0", "dtype": 1, "rollouts": [{"rollout_id": "g0/0"}]}}},
    lambda job: {"log_prob_done": {"id": job}},
    lambda job: {"log_prob_done": {"id": job, "failure": failure(5, "NOT_FOUND")}},
], ids=["no results", "results", "the end of a pass", "the failure of a pass"])
def test_a2_an_export_ends_by_its_own_message_only(cluster, lie):
    with PlayedWorker(cluster) as worker:
        assert worker.join()
        call = cluster.stub.ExportWeights.future(_proto.ExportWeightsRequest(name="stolen"), timeout=60)
        worker.send(**lie(worker.receive("export").export.id))
        assert worker.end()[0] == grpc.StatusCode.INVALID_ARGUMENT
    error = refusal(call.result)
    assert error.code == grpc.StatusCode.UNAVAILABLE and cluster.server.poll() is None, error


def results(job, rollouts, uid="g0", dtype=1):
    return {"results": {"id": job, "group": {"uid": uid, "dtype": dtype, "rollouts": rollouts}}}


def numbers(count, rollout="g0/0"):
    return {"rollout_id": rollout, "log_probs": bytes(count)}


@pytest.mark.parametrize("lie", [
    lambda job: results(job, []), lambda job: results(job, [numbers(12)], uid="other"),
    lambda job: results(job, [numbers(12, "g0/9")]), lambda job: results(job, [numbers(13)]),
    lambda job: results(job, [numbers(12)], dtype=2), lambda job: results(job, [numbers(12)], dtype=0),
    lambda job: results(job, [numbers(12)], dtype=7), lambda job: results(job, [numbers(12), numbers(12)]),
    lambda job: results(job, [{"rollout_id": "g0/0", "entropy": bytes(11)}]),
    lambda job: {"export_done": {"id": job, "bytes": 9}},
], ids=["none", "group", "rollout", "length", "as float64", "no dtype", "unknown dtype", "twice", "entropy", "export's end"])
def test_a2_results_are_those_of_the_request(cluster, lie):
    with PlayedWorker(cluster) as worker:
        assert worker.join()
        call = log_prob_call(cluster)
        worker.send(**lie(worker.receive("log_prob").log_prob.id))
        assert worker.end()[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert refusal(lambda: list(call)).code == grpc.StatusCode.UNAVAILABLE
    assert cluster.server.poll() is None


def test_a2_control_the_same_results_in_order_are_passed_on(cluster):
    with PlayedWorker(cluster) as worker:
        assert worker.join()
        call = log_prob_call(cluster)
        job = worker.receive("log_prob").log_prob.id
        worker.send(**results(job, [numbers(12)]))
        worker.send(**results(job, [numbers(24, "g0/1")], dtype=2))
        worker.send(log_prob_done={"id": job})
        assert [r.rollout_id for chunk in call for r in chunk.rollouts] == ["g0/0", "g0/1"]
    wait_for(lambda: workers(cluster) == 0, "the worker to be gone")


@pytest.mark.parametrize("sent, code, reason", [
    (failure(0, "FINE"), "INTERNAL", "INTERNAL"), (failure(9999, "FINE"), "INTERNAL", "INTERNAL"),
    (failure((1 << 32) - 1, ""), "INTERNAL", "INTERNAL"), (failure(5, "not a reason"), "NOT_FOUND", "INTERNAL"),
    (failure(5, "A" * 70), "NOT_FOUND", "INTERNAL"), (failure(8, "DISK_FULL"), "RESOURCE_EXHAUSTED", "DISK_FULL"),
    (failure(13, "INTERNAL", "line\n" + HUGE), "INTERNAL", "INTERNAL"),
], ids=range(7))
def test_a2_codes_reasons_and_texts_of_workers_are_checked(cluster, sent, code, reason):
    with PlayedWorker(cluster) as worker:
        assert worker.join()
        call = cluster.stub.ExportWeights.future(_proto.ExportWeightsRequest(name="x"), timeout=60)
        worker.send(export_done={"id": worker.receive("export").export.id, "failure": sent})
        error = refusal(call.result)
        assert (error.code.name, error.reason) == (code, reason), error
        assert len(error.message) < 1100 and "\n" not in error.message
    wait_for(lambda: workers(cluster) == 0, "the worker to be gone")


@pytest.mark.parametrize("vote, outcome", [
    ({"yes": True, "grad_norm_squared": math.nan}, "NONFINITE_GRADIENT"),
    ({"yes": True, "grad_norm_squared": math.inf}, "NONFINITE_GRADIENT"),
    ({"yes": True, "grad_norm_squared": -1.0}, "ATTEMPTS_EXHAUSTED"),
    ({"no_reason": "CANCELLED"}, "ATTEMPTS_EXHAUSTED"),
    ({"yes": True, "grad_norm_squared": 1.0, "sums": {"suffix_s": math.inf}}, "ATTEMPTS_EXHAUSTED"),
    ({"yes": True, "grad_norm_squared": 1.0, "no_reason": 77}, "ATTEMPTS_EXHAUSTED"),
    ({"no_reason": 77, "message": HUGE}, "INTERNAL"),
    ({"message": HUGE}, "INTERNAL"),
], ids=["nan", "inf", "negative", "cancelled by nobody", "endless seconds", "yes with a reason", "unknown reason",
        "no reason"])
def test_a2_votes_are_checked(cluster, vote, outcome):
    request = Request()
    call = None
    for _ in range(3):  # a breach costs an attempt
        with PlayedWorker(cluster) as worker:
            assert worker.join()
            call = call or cluster.stub.UpdateActor.future(iter(request.parts()), timeout=60)
            worker.send(vote={"key": worker.receive("prepare").prepare.key, **vote})
            if outcome == "ATTEMPTS_EXHAUSTED":
                assert worker.end()[0] == grpc.StatusCode.INVALID_ARGUMENT
            else:
                error = refusal(lambda: call.result(60))
                break
    else:
        error = refusal(lambda: call.result(60))
    assert error.reason == outcome and len(error.message) < 1500, error
    wait_for(lambda: workers(cluster) == 0, "the worker to be gone")


def test_a2_numbers_that_are_not_finite_reach_neither_the_calibration_nor_the_server_s_life(cluster):
    with PlayedWorker(cluster) as worker:
        assert worker.join()
        call = cluster.stub.UpdateActor.future(iter(Request().parts()), timeout=60)
        key = worker.receive("prepare").prepare.key
        sums = {"policy_loss": math.inf, "kl_loss": math.nan, "entropy_nats": -math.inf, "suffix_s": 1e300,
                "loss_tokens": (1 << 64) - 1, "computed_rows": (1 << 64) - 1, "offload_waits": (1 << 64) - 1}
        worker.send(vote={"key": key, "yes": True, "grad_norm_squared": 1e300, "sums": sums})
        worker.send(applied={"key": worker.receive("apply").apply.key, "apply_s": 1e300})
        call.result(60)
    wait_for(lambda: workers(cluster) == 0, "the worker to be gone")
    serves(cluster)


# ------------------------------------------------------------------------------------------------ with the secret, by chance


def start_a_job(cluster, rng, worker, liar):
    """One of the server's jobs for that worker; returns how to cancel its call."""
    kind = rng.choice(("none", "update", "log_prob", "export"))
    if kind == "update":
        call = cluster.stub.UpdateActor.future(iter(Request().parts()), timeout=60)
        liar.heard.append(worker.receive("prepare").prepare.key.SerializeToString())
    elif kind == "log_prob":
        call = log_prob_call(cluster)
        liar.STRINGS += (worker.receive("log_prob").log_prob.id,)
    elif kind == "export":
        call = cluster.stub.ExportWeights.future(_proto.ExportWeightsRequest(name="x"), timeout=60)
        liar.STRINGS += (worker.receive("export").export.id,)
    return kind if kind == "none" else call


def cancel_everything(cluster):
    for status in cluster.stub.ListRequests(_proto.ListRequestsRequest()).requests:
        try:
            cluster.stub.CancelRequest(_proto.CancelRequestRequest(request_id=status.request_id))
        except grpc.RpcError:
            pass  # it has ended


def test_a2_a_campaign_of_random_messages_leaves_a_server_that_serves(cluster):
    print(f"seed {SEED}, {CASES} cases")
    rng = random.Random(SEED)
    closed = 0
    for case in range(CASES):
        liar = Liar(rng)
        with PlayedWorker(cluster) as worker:
            call = "none"
            if rng.random() < 0.9:
                assert worker.join(), f"case {case} of seed {SEED}"
                call = start_a_job(cluster, rng, worker, liar)
            for _ in range(rng.choice((1, 1, 2, 5))):
                worker.send_message(liar.message())
            worker.send()  # of no kind: a breach, so that the stream ends after what was sent
            closed += worker.end()[0] == grpc.StatusCode.INVALID_ARGUMENT
        assert cluster.server.poll() is None, f"case {case} of seed {SEED}: {cluster.said()[-3000:]}"
        cancel_everything(cluster)
        if call != "none":
            call.cancel()
        assert workers(cluster) == 0, f"case {case} of seed {SEED}"
    assert closed == CASES
    serves(cluster)
