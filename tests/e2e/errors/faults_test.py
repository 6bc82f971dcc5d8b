"""Workers that hang and die, repeats, cancels and waits: real processes, with the worker that does so on demand."""

import signal

import grpc
import pytest

from e2e.own_loopback import channel_to
from good_request import Request, refusal
from server import MODEL, Cluster, wait_for
from stemma import _proto

_STATUS = _proto.message_class("stemma.v1.RequestStatus").DESCRIPTOR
STATES = {value.name: value.number for value in _STATUS.fields_by_name["state"].enum_type.values}


@pytest.fixture
def cluster():
    with Cluster(fake=True) as running:
        yield running


def submit(cluster, *uids, **changes):
    """Sent, answered once accepted."""
    request = Request(uids or ("g0", "g1"))
    request.header["request"]["wait_ms"] = 0
    request.header.update(changes)
    status = request.send(cluster.stub)
    assert status.state in (STATES["ACCEPTED"], STATES["PREPARING"])
    return request


def get(cluster, request, wait_ms=0):
    return cluster.stub.GetRequest(_proto.GetRequestRequest(request_id=request.id, wait_ms=wait_ms), timeout=60)


def wait_until(cluster, request, state):
    return wait_for(lambda: get(cluster, request).state == STATES[state] and get(cluster, request), state)


def test_a_worker_killed_in_the_middle_of_the_first_request_is_replaced_and_the_step_made_once(cluster):
    request = submit(cluster, "hang")
    wait_until(cluster, request, "PREPARING")
    lineage = cluster.model().lineage
    cluster.worker.send_signal(signal.SIGKILL)
    cluster.lose_worker()
    assert refusal(lambda: Request().send(cluster.stub)).reason == "RECOVERING"
    cluster.start_worker()
    cluster.stub.CancelRequest(_proto.CancelRequestRequest(request_id=request.id))
    good = Request().send(cluster.stub)
    assert good.result.steps[0].step == 1
    assert cluster.model().lineage == lineage, "no weights were lost"


def test_a_request_that_kills_every_worker_exhausts_its_attempts_and_the_next_one_is_served(cluster):
    request = submit(cluster, "crash")
    for attempt in range(3):
        cluster.lose_worker()
        cluster.start_worker(wait=attempt == 2)  # the others die as soon as they are ready
    status = get(cluster, request, wait_ms=20_000)
    assert status.failure.reason == "ATTEMPTS_EXHAUSTED" and status.failure.category == "SERVER"
    assert status.failure.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert Request().send(cluster.stub).steps_applied == 1


@pytest.mark.parametrize("uid", ["crash", "stay"], ids=["in Prepare", "in Apply"])
def test_weights_lost_with_their_worker_start_a_new_lineage_and_say_so(cluster, uid):
    done = Request()
    done.send(cluster.stub)
    before = cluster.model()
    open_request = Request((uid, "g1"))
    error = refusal(lambda: open_request.send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "ROLLED_BACK"), error
    cluster.lose_worker()
    after = cluster.model()
    assert error.metadata["lineage"] == after.lineage != before.lineage
    assert (before.step, after.step) == (1, 0) and after.weight_version > before.weight_version
    cluster.start_worker()
    assert get(cluster, done).state == STATES["ROLLED_BACK"] and get(cluster, done).lineage == before.lineage
    assert get(cluster, done).failure.metadata["lost_step"] == "1", "nobody takes it for weights that are there"
    assert refusal(lambda: done.send(cluster.stub)).reason == "ROLLED_BACK"
    stale = Request()
    stale.header["request"]["expected_step"] = 1
    assert refusal(lambda: stale.send(cluster.stub)).reason == "STEP_MISMATCH"
    assert Request().send(cluster.stub).result.steps[0].step == 1


def test_a_request_of_several_steps_whose_worker_dies_between_them_is_rolled_back(cluster):
    request = Request(("g0", "crash"))
    request.header["ppo_mini_batch_size"] = 1
    error = refusal(lambda: request.send(cluster.stub))
    assert error.reason == "ROLLED_BACK", error
    assert get(cluster, request).steps_applied == 1


def test_stemma_worker_killed_in_the_middle_of_many_steps_rolls_back_and_its_successor_serves():
    with Cluster(flags=("--dtype", "fp64", "--durability", "rewind")) as cluster:
        request = submit(cluster, ppo_epochs=4000)
        wait_for(lambda: get(cluster, request).steps_applied > 0, "a first step")
        cluster.worker.send_signal(signal.SIGKILL)
        cluster.lose_worker()
        status = get(cluster, request)
        assert status.failure.reason == "ROLLED_BACK" and 0 < status.steps_applied < 4000
        assert refusal(lambda: request.send(cluster.stub)).reason == "ROLLED_BACK"
        cluster.start_worker()
        step = Request().send(cluster.stub).result.steps[0]
        assert step.step == 1 and step.metrics["actor/grad_norm"] > 0


def test_a_repeated_id_attaches_then_replays_and_never_steps_twice(cluster):
    request = submit(cluster, "hang")
    attached = cluster.stub.UpdateActor.future(iter(request.parts()))
    assert attached.result().replayed
    cluster.stub.CancelRequest(_proto.CancelRequestRequest(request_id=request.id))
    done = Request()
    first = done.send(cluster.stub)
    again = done.send(cluster.stub)
    assert not first.replayed and again.replayed
    assert again.result.steps[0].step == first.result.steps[0].step == cluster.model().step == 1
    done.rollout()["advantage"] = 9.0
    error = refusal(lambda: done.send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED"), error
    assert f"request {done.id} was sent before" in error.message and "(GetRequest, client.attach)" in error.message


def test_a_repeat_is_answered_though_the_server_that_came_since_would_not_accept_it():
    """Its client would take the refusal for the outcome, send the rollouts under another id, and train on them twice."""
    with Cluster(config="limits:\n  steps: 4\n", flags=("--dtype", "fp64")) as cluster:
        request = Request()
        request.header["ppo_epochs"] = 4
        first = request.send(cluster.stub)
        assert first.steps_applied == 4 and not first.replayed
        cluster.server.send_signal(signal.SIGTERM)
        cluster.server.wait(60)
        (cluster.root / "run.yaml").write_text("limits:\n  steps: 2\n")
        cluster.restart()
        again = request.send(cluster.stub)
        assert again.replayed and [s.step for s in again.result.steps] == [1, 2, 3, 4] and cluster.model().step == 4
        request.header["request"]["request_id"] = "new"
        assert refusal(lambda: request.send(cluster.stub)).reason == "LIMIT_EXCEEDED"


@pytest.mark.parametrize("limits, reason", [("rollouts: 1", "LIMIT_EXCEEDED"), ("string_bytes: 1", "INVALID_REQUEST")])
def test_a_refusal_of_what_is_not_read_to_its_end_says_that_its_id_was_accepted(limits, reason):
    """Whether it is a repeat is not known then: its digest is not."""
    with Cluster(config="limits: {}\n", flags=("--dtype", "fp64")) as cluster:
        request = Request()
        request.send(cluster.stub)
        cluster.server.send_signal(signal.SIGTERM)
        cluster.server.wait(60)
        (cluster.root / "run.yaml").write_text(f"limits:\n  {limits}\n")
        cluster.restart()
        known = refusal(lambda: request.send(cluster.stub))
        assert known.reason == reason and known.message.endswith("and do not send it under another"), known.message
        assert f"a request {request.id} was accepted before" in known.message
        request.header["request"]["validate_only"] = True
        assert "was accepted" not in refusal(lambda: request.send(cluster.stub)).message
        request.header["request"]["validate_only"] = False
        request.header["request"]["request_id"] = "new"
        new = refusal(lambda: request.send(cluster.stub))
        assert new.reason == reason and "was accepted" not in new.message, new.message


def test_a_call_that_ends_early_does_not_end_its_request(cluster):
    request = Request()
    request.header["request"]["request_id"] = "early"
    blocker = submit(cluster, "hang")
    call = cluster.stub.UpdateActor.future(iter(request.parts()))
    known = lambda: [status.request_id for status in cluster.stub.ListRequests(_proto.ListRequestsRequest()).requests]
    wait_for(lambda: request.id in known(), "the request to be taken")
    assert call.cancel() and call.code() == grpc.StatusCode.CANCELLED
    assert get(cluster, request, wait_ms=50).queue_position == 1
    cluster.stub.CancelRequest(_proto.CancelRequestRequest(request_id=blocker.id))
    assert get(cluster, request, wait_ms=20_000).steps_applied == 1
    assert request.send(cluster.stub).replayed


def test_a_running_request_is_cancelled_between_waves_and_a_queued_one_at_once(cluster):
    running, queued = submit(cluster, "hang"), submit(cluster)
    assert get(cluster, queued).queue_position == 1
    for request in (queued, running):
        status = cluster.stub.CancelRequest(_proto.CancelRequestRequest(request_id=request.id), timeout=60)
        assert status.state == STATES["CANCELLED"] and status.steps_applied == 0
    error = refusal(lambda: running.send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.CANCELLED, "CANCELLED"), error
    assert Request().send(cluster.stub).steps_applied == 1


def test_get_request_polls_until_its_time_is_over(cluster):
    request = submit(cluster, "hang")
    wait_until(cluster, request, "PREPARING")
    assert get(cluster, request, wait_ms=50).state == STATES["PREPARING"]
    other = submit(cluster)
    future = cluster.stub.GetRequest.future(_proto.GetRequestRequest(request_id=other.id, wait_ms=30_000))
    cluster.stub.CancelRequest(_proto.CancelRequestRequest(request_id=request.id))
    assert future.result().state == STATES["DONE"]


def test_a_nonfinite_gradient_aborts_or_skips(cluster):
    request = Request(("nonfinite", "g1"))
    error = refusal(lambda: request.send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NONFINITE_GRADIENT"), error
    skipping = Request(("nonfinite", "g1"))
    skipping.header["request"]["on_nonfinite"] = "SKIP"
    skipping.header["ppo_mini_batch_size"] = 1
    steps = skipping.send(cluster.stub).result.steps
    assert [(s.outcome, s.step) for s in steps] == [(2, 0), (1, 1)]


def test_a_worker_that_refuses_a_step_fails_it_and_serves_the_next(cluster):
    assert refusal(lambda: Request(("refuse", "g1")).send(cluster.stub)).reason == "INTERNAL"
    assert Request().send(cluster.stub).steps_applied == 1


def test_validate_only_answers_the_plan_and_changes_nothing(cluster):
    request = Request()
    request.header["request"]["validate_only"] = True
    status = request.send(cluster.stub)
    assert status.plan.num_steps == 1 and status.plan.rollouts_run == 4
    assert cluster.model().step == 0
    assert refusal(lambda: get(cluster, request)).code == grpc.StatusCode.NOT_FOUND


def test_log_probs_come_back_chunked_and_results_are_read_later(cluster):
    request = Request()
    request.header["return_log_probs"] = True
    request.send(cluster.stub)
    groups = list(cluster.stub.ReadResults(_proto.ReadResultsRequest(request_id=request.id)))
    assert [g.uid for g in groups] == ["g0", "g1"] and groups[1].rollouts[1].rollout_id == "g1/1"
    plain = Request()
    plain.send(cluster.stub)
    error = refusal(lambda: list(cluster.stub.ReadResults(_proto.ReadResultsRequest(request_id=plain.id))))
    assert error.reason == "UNSUPPORTED"


def test_a_log_prob_call_that_is_cancelled_frees_the_worker(cluster):
    parts = Request(("hang", "g1")).parts()
    header = _proto.GroupPart()
    header.log_prob.weights, header.log_prob.temperature = "policy", 1.0
    call = cluster.stub.ComputeLogProb(iter([header] + parts[1:]))
    wait_for(lambda: "log-prob pass" in cluster.said(), "the pass to be accepted")
    submitted = submit(cluster)
    assert get(cluster, submitted).queue_position == 1
    call.cancel()
    assert get(cluster, submitted, wait_ms=30_000).state == STATES["DONE"]


def test_a_large_payload_reaches_the_worker_whole(cluster):
    request = Request(("g0",))
    rollout = request.groups[0]["rollouts"][0]
    request.groups[0]["rollouts"] = [dict(rollout, rollout_id=f"r{i}", sample_id="s" * 200) for i in range(40_000)]
    request.header["return_log_probs"] = True
    assert request.send(cluster.stub, timeout=120).steps_applied == 1
    groups = list(cluster.stub.ReadResults(_proto.ReadResultsRequest(request_id=request.id)))
    assert sum(len(g.rollouts) for g in groups) == 40_000


def test_expected_step_is_checked(cluster):
    request = Request()
    request.header["request"]["expected_step"] = 5
    error = refusal(lambda: request.send(cluster.stub))
    assert (error.code, error.reason, error.metadata["step"]) == (grpc.StatusCode.ABORTED, "STEP_MISMATCH", "0"), error


def health(cluster, service):
    name = service.encode()
    with channel_to(cluster.ops_address) as channel:
        call = channel.unary_unary("/grpc.health.v1.Health/Check")
        return call(b"\x0a" + bytes([len(name)]) + name if name else b"")


def test_health_follows_the_worker_and_reflection_is_off_unless_asked_for(cluster):
    serving, not_serving = b"\x08\x01", b"\x08\x02"
    names = ("", "readiness", "stemma.v1.TrainingService")
    for name in names + ("liveness",):
        wait_for(lambda: health(cluster, name) == serving, f"{name!r} to serve")
    assert refusal(lambda: health(cluster, "nobody")).code == grpc.StatusCode.NOT_FOUND
    cluster.worker.send_signal(signal.SIGKILL)
    cluster.lose_worker()
    for name in names:
        wait_for(lambda: health(cluster, name) == not_serving, f"{name!r} to stop serving")
    assert health(cluster, "liveness") == serving
    reflect = cluster.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    assert refusal(lambda: next(iter(reflect(iter([b"\x3a\x00"]))))).code == grpc.StatusCode.UNIMPLEMENTED


def test_a_second_worker_is_refused_while_one_is_connected(cluster):
    first, lineage = cluster.worker, cluster.model().lineage
    cluster.worker = None
    cluster.start_worker()
    assert cluster.worker.wait(60) == 1
    assert "another worker is connected" in cluster.said()
    cluster.worker = first
    assert Request().send(cluster.stub).steps_applied == 1 and cluster.model().lineage == lineage


def test_the_worker_ends_when_its_server_dies(cluster):
    cluster.server.send_signal(signal.SIGKILL)
    assert cluster.worker.wait(60) == 1


def test_the_ready_file_and_server_info_say_what_is_in_force():
    with Cluster(fake=True, config="dtype: bf16\nwave_suffixes: 3\n", flags=("--dtype", "fp64")) as cluster:
        info = cluster.stub.GetServerInfo(_proto.GetServerInfoRequest())
        assert info.config.dtype == "fp64" and info.config.wave_suffixes == 3, "flags override the file"
        assert info.config.model == str(MODEL) and info.config.limits.message_bytes == 64 << 20
        assert info.workers_connected == 1 and "vanilla" in info.loss_modes
