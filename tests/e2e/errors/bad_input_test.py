"""Each bad input gives its named error, and the same server then serves a good request. Real server, real worker."""

import re
import struct

import grpc
import pytest

from good_request import Request, refusal
from server import Cluster
from stemma import _proto

LIMITS = "limits:\n  message_bytes: 65536\n  steps: 8\n"


def too_large():
    """A request whose second group is the longest that the model's positions allow."""
    request = Request()
    large = request.groups[1]
    large["prompt_tokens"] = [1] * 30
    for rollout in large["rollouts"]:
        for field in ("response_tokens", "response_mask", "old_log_probs", "ref_log_prob"):
            rollout[field] = [1] * 32
    return request


@pytest.fixture(scope="module")
def budget():
    """Bytes that take a short group and not the longest, whatever is kept, by the planner's own formulas: beside the
    state, and in all."""
    def plan(request):
        request.header["request"]["validate_only"] = True
        return request.send(unbounded.stub).plan

    least = "wave_suffixes: 1\nprefix_policy: s5\nsuffix_policy: s4\n"
    with Cluster(fake=True, config=least, flags=("--dtype", "fp64")) as unbounded:
        small, large = plan(Request()), plan(too_large())
    assert small.peak_bytes < large.peak_bytes
    left = (3 * small.peak_bytes + large.peak_bytes) // 4
    return left, small.state.device + left


@pytest.fixture(scope="module")
def cluster(budget):
    with Cluster(config=LIMITS, flags=("--dtype", "fp64", "--optimizer-residency", "device",
                                        "--memory-budget", str(budget[1]))) as running:
        yield running


@pytest.fixture(autouse=True)
def serves_a_good_request_afterwards(cluster):
    yield
    step = cluster.model().step
    status = Request().send(cluster.stub)
    assert status.steps_applied == 1 and status.result.steps[0].step == step + 1
    assert status.result.steps[0].metrics["actor/grad_norm"] > 0


def change(field, value):
    return lambda request: request.rollout().__setitem__(field, value)


def remove(field):
    return lambda request: request.rollout().pop(field)


def header(section, field, value):
    return lambda request: request.header[section].__setitem__(field, value)


def without(section, field):
    return lambda request: request.header[section].pop(field)


def on_the_wire(change_group):
    """What the Python client refuses itself: changed in the message of the second group."""
    def spoil(request):
        def change_parts(parts):
            change_group(parts[2].group)
            return parts
        request.spoil_parts = change_parts
    return spoil


NAN = float("nan")
R = "groups[1].rollouts[1]."
INVALID = [
    ("token beyond the vocabulary", change("response_tokens", [5, 10_000, 7]), R + "response_tokens[1]"),
    ("negative token", on_the_wire(lambda g: setattr(g.rollouts[1], "response_tokens", struct.pack("<3i", 5, -3, 7))),
     R + "response_tokens[1]"),
    ("empty prompt", on_the_wire(lambda g: g.ClearField("prompt_tokens")), "groups[1].prompt_tokens"),
    ("beyond the model's positions", lambda r: r.groups[1].update(prompt_tokens=[1] * 62), "groups[1].rollouts[0].response_tokens"),
    ("old_log_probs too short", change("old_log_probs", [-1.0]), R + "old_log_probs"),
    ("rollout_log_probs too short", lambda r: change("rollout_log_probs", [-1.0])(r.old_from_rollouts()),
     R + "rollout_log_probs"),
    ("ref_log_prob too long", change("ref_log_prob", [-1.0] * 4), R + "ref_log_prob"),
    ("token_advantages too short", lambda r: (remove("advantage")(r), change("token_advantages", [1.0])(r)),
     R + "token_advantages"),
    ("rollout_is_weights too short", change("rollout_is_weights", [1.0]), R + "rollout_is_weights"),
    ("loss_weights too short", lambda r: change("loss_weights", [1.0])(r.cross_entropy()), R + "loss_weights"),
    ("NaN advantage", change("advantage", NAN), R + "advantage"),
    ("infinite old_log_probs", change("old_log_probs", [-1.0, float("-inf"), -1.0]), R + "old_log_probs[1]"),
    ("no old_log_probs", remove("old_log_probs"), R + "old_log_probs"),
    ("no advantage, no reward", remove("advantage"), R + "advantage"),
    ("unknown loss", header("loss", "loss_mode", "ppo"), "update.loss.loss_mode"),
    ("unknown aggregation", header("loss", "loss_agg_mode", "mean"), "update.loss.loss_agg_mode"),
    ("unknown KL", header("loss", "kl_loss_type", "full"), "update.loss.kl_loss_type"),
    ("missing coefficient", without("loss", "clip_ratio_low"), "update.loss.clip_ratio_low"),
    ("missing KL coefficient", without("loss", "kl_loss_coef"), "update.loss.kl_loss_coef"),
    ("missing learning rate", without("adam", "learning_rate"), "update.adam.learning_rate"),
    ("a knob that is never read", header("loss", "loss_scale_factor", 2.0), "update.loss.loss_scale_factor"),
    ("rollout_log_probs that old from CLIENT never reads", change("rollout_log_probs", [-1.0] * 3), R + "rollout_log_probs"),
    ("old_log_probs that old from ROLLOUT never reads", lambda r: change("old_log_probs", [-1.0] * 3)(r.old_from_rollouts()),
     R + "old_log_probs"),
    ("a reward beside an advantage", change("reward", 1.0), R + "reward"),
    ("an advantage that cross_entropy never reads", lambda r: change("advantage", 1.0)(r.cross_entropy()), R + "advantage"),
    ("duplicate uid", lambda r: r.groups[1].update(uid="g0"), "groups[1].uid"),
    ("duplicate rollout_id", change("rollout_id", "g0/0"), R + "rollout_id"),
    ("shuffle without a seed", lambda r: r.header.update(shuffle=True), "update.seed"),
    ("an id that is a path", lambda r: r.header["request"].update(request_id="../x"), "update.request.request_id"),
]


@pytest.mark.parametrize("spoil, field", [case[1:] for case in INVALID], ids=[case[0] for case in INVALID])
def test_an_invalid_request_is_refused_by_field_path(cluster, spoil, field):
    request = Request()
    spoil(request)
    error = refusal(lambda: request.send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"), error
    assert error.fields[0] == field, error
    if field.startswith("groups[1]"):
        assert error.metadata["uid"] == request.groups[1]["uid"]


@pytest.mark.parametrize("drop, says", [
    (lambda header: header["loss"].pop("kl_loss_type"), "kl_loss_type is missing: the KL term needs it; "),
    (lambda header: header.pop("ref"), "ref is missing: .* from CLIENT .ref_log_prob of each rollout. or from WEIGHTS; ")])
def test_half_of_a_kl_term_is_told_what_to_send_or_to_leave_out(cluster, drop, says):
    request = Request()
    drop(request.header)
    message = str(refusal(lambda: request.send(cluster.stub)))
    assert re.search(says + "for a loss without one leave kl_loss_coef out", message), message


def test_a_response_mask_of_another_length_is_refused(cluster):
    request = Request()

    def spoil(parts):
        parts[2].group.rollouts[1].response_mask = b"\x01\x01"
        return parts
    request.spoil_parts = spoil
    assert refusal(lambda: request.send(cluster.stub)).fields == [R + "response_mask"]


def test_every_problem_is_reported_at_once(cluster):
    request = Request()
    request.header["loss"]["loss_mode"] = "ppo"
    request.rollout()["advantage"] = NAN
    on_the_wire(lambda g: g.ClearField("prompt_tokens"))(request)
    error = refusal(lambda: request.send(cluster.stub))
    assert error.metadata["violations"] == "3"
    assert set(error.fields) == {"update.loss.loss_mode", "groups[1].prompt_tokens", R + "advantage"}


@pytest.mark.parametrize("spoil", [
    lambda parts: parts[:-1],
    lambda parts: parts[:-2] + parts[-1:],
    lambda parts: parts[1:],
], ids=["no end", "a group less than its end says", "no header"])
def test_a_cut_stream_is_short_and_leaves_its_id_free(cluster, spoil):
    request = Request()
    request.spoil_parts = spoil
    error = refusal(lambda: request.send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "SHORT_STREAM"), error
    request.spoil_parts = lambda parts: parts
    assert request.send(cluster.stub).steps_applied == 1


def test_a_header_that_counts_other_groups_is_short(cluster):
    request = Request()
    request.header["num_groups"] = 3
    assert refusal(lambda: request.send(cluster.stub)).reason == "SHORT_STREAM"


def test_a_client_that_breaks_off_leaves_nothing_behind(cluster):
    request = Request()

    def broken():
        yield from request.parts()[:2]
        raise RuntimeError("the client dies here")
    refusal(lambda: cluster.stub.UpdateActor(broken()))
    assert refusal(lambda: cluster.stub.GetRequest(_proto.GetRequestRequest(request_id=request.id))).reason == "NOT_FOUND"
    assert request.send(cluster.stub).steps_applied == 1


def test_a_message_over_the_limit_is_resource_exhausted(cluster):
    request = Request()
    request.rollout()["sample_id"] = "x" * 70_000
    error = refusal(lambda: request.send(cluster.stub))
    assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED, error


def test_too_many_steps_exceed_a_limit(cluster):
    request = Request()
    request.header["ppo_epochs"] = 9
    error = refusal(lambda: request.send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED"), error


def test_a_group_too_large_for_the_budget_is_named(cluster, budget):
    error = refusal(lambda: too_large().send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "GROUP_TOO_LARGE"), error
    assert "g1" in error.message and f"memory_budget_bytes leaves {budget[0]}" in error.message


def test_on_policy_with_several_steps_is_unsupported(cluster):
    request = Request()
    request.header["old"] = {"from": "ON_POLICY"}
    for rollout in request.rollouts():
        del rollout["old_log_probs"]
    request.header["ppo_epochs"] = 2
    error = refusal(lambda: request.send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "UNSUPPORTED"), error


@pytest.mark.parametrize("weights", ["", "../start", "start/optim", "a" * 200])
def test_weights_whose_name_is_none_are_refused(cluster, weights):
    parts = [_proto.GroupPart() for _ in range(2)]
    parts[0].log_prob.weights = weights
    parts[0].log_prob.temperature = 1.0
    parts[1].end.num_groups = 0
    error = refusal(lambda: list(cluster.stub.ComputeLogProb(iter(parts))))
    assert error.fields[0] == "log_prob.weights", error


@pytest.mark.parametrize("field, value", [("request.validate_only", True), ("request.wait_ms", 5), ("request.on_nonfinite", "SKIP"),
                                          ("request.schedule", "DENSE"), ("trace_step", 0), ("return_log_probs", True)])
def test_what_a_verification_does_not_read_is_refused(cluster, field, value):
    request = Request()
    at = request.header["request"] if field.startswith("request.") else request.header
    at[field.removeprefix("request.")] = value
    error = refusal(lambda: cluster.stub.VerifyGroup(iter(request.parts())))
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [f"update.{field}"]), error


def test_a_verification_is_of_one_step(cluster):
    request = Request()
    request.header["ppo_epochs"] = 2
    error = refusal(lambda: cluster.stub.VerifyGroup(iter(request.parts())))
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["update.ppo_mini_batch_size"]), error
    assert "2 optimizer steps" in error.message, error


def test_an_export_name_is_never_a_path(cluster):
    error = refusal(lambda: cluster.stub.ExportWeights(_proto.ExportWeightsRequest(name="../../x")))
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["name"]), error
