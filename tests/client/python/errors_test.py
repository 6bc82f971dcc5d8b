"""What an error of the client says: the steps that stay, and every field that was refused."""

import pathlib
import sys

import grpc
import pytest
import stemma
from stemma import _proto

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from client_test import run, status, update  # noqa: E402
from fake_server import FakeServer, abort  # noqa: E402

Model = _proto.message_class("stemma.v1.ModelInfo")


def accepted(parts, _):
    return status(list(parts)[0].update.request.request_id, "ACCEPTED")


def failure_of(code, reason, message, applied, total, **fields):
    """The error of a request that was accepted and failed."""
    def get_request(request, _):
        out = status(request.request_id, "FAILED", steps_applied=applied, steps_total=total)
        failure = {"code": code.value[0], "reason": reason, "message": message, **fields}
        out.failure.CopyFrom(_proto.message_class("stemma.v1.Failure")(**failure))
        return out

    with pytest.raises(stemma.StemmaError) as error:
        run({"UpdateActor": accepted, "GetRequest": get_request}, update, retries=0)
    return error.value


def test_an_error_of_no_request_names_no_group_and_no_field():
    error = stemma.StemmaError("UNAVAILABLE", "", "gone")
    assert (error.uid, error.fields, error.metadata, error.retry_after_s) == ("", [], {}, None) and str(error) == "UNAVAILABLE: gone"


def test_a_call_that_the_server_does_not_know_is_said():
    with pytest.raises(stemma.StemmaError, match="the server does not know this call, or cannot read it") as error:
        run({"DeleteExport": lambda _, context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "")},
            lambda client: client.delete_export("old"), retries=0)
    assert error.value.code == "UNIMPLEMENTED"


def test_a_failure_says_which_steps_were_applied_before_it():
    message = "the gradient is not finite; nothing of this step was applied"
    later = failure_of(grpc.StatusCode.FAILED_PRECONDITION, "NONFINITE_GRADIENT", message, 1, 3)
    assert later.message == f"{message}; 1 of 3 steps of the request were applied before" and later.message in str(later)
    assert (later.metadata["steps_applied"], later.metadata["steps_total"]) == ("1", "3")
    first = failure_of(grpc.StatusCode.FAILED_PRECONDITION, "NONFINITE_GRADIENT", message, 0, 3)
    assert first.message == message and first.metadata["steps_applied"] == "0"


@pytest.mark.parametrize("reason, message", [
    ("INTERNAL", "worker lost; 1 of 3 steps are applied and stay; send the others under a new request_id"),
    ("ROLLED_BACK", "the weights are lost")])
def test_a_failure_that_says_so_itself_or_lost_the_steps_is_left_alone(reason, message):
    error = failure_of(grpc.StatusCode.INTERNAL, reason, message, 1, 3)
    assert error.message == message and error.metadata["steps_applied"] == "1"


def refused(message, fields, call=update, reason="INVALID_REQUEST", metadata=None):
    """The error of a call that is refused at once."""
    def refuse(sent, context):
        if hasattr(sent, "__next__"):
            list(sent)
        abort(context, grpc.StatusCode.INVALID_ARGUMENT, message, reason, fields, metadata)

    with pytest.raises(stemma.StemmaError) as error:
        run({name: refuse for name in ("UpdateActor", "ExportWeights")}, call)
    return error.value


def test_every_problem_is_listed_also_where_several_have_one_text():
    paths = [f"groups[0].rollouts[{r}].advantage" for r in range(3)]
    error = refused(f"{paths[0]} is inf, must be finite (uid g0); and 2 more problems", [(p, "is inf, must be finite") for p in paths])
    assert str(error).splitlines() == [
        f"INVALID_ARGUMENT INVALID_REQUEST: {paths[0]} is inf, must be finite (uid g0); and 2 more problems",
        f"  {paths[1]}: is inf, must be finite", f"  {paths[2]}: is inf, must be finite"]


def test_a_message_that_leaves_its_field_out_is_said_with_it():
    error = refused("a name may not be empty", [("name", "a name may not be empty")], lambda c: c.export("a"))
    assert str(error) == "INVALID_ARGUMENT INVALID_REQUEST: name: a name may not be empty"
    error = refused("update.loss.x is 3", [("update.loss.x", "is 3")])
    assert str(error) == "INVALID_ARGUMENT INVALID_REQUEST: update.loss.x is 3", "and one that has it is not said twice"


def test_a_field_that_stands_in_the_metadata_alone_is_a_field():
    error = refused("the step is 9 of 3", [], metadata={"field": "update.trace_step"})
    assert error.fields == [("trace_step", "the step is 9 of 3")]
    assert str(error).endswith("INVALID_REQUEST: trace_step: the step is 9 of 3")


ROLLOUTS = [stemma.Rollout([8, 9], reward=1.0), {"response_tokens": [8], "reward": 0.0}]


@pytest.mark.parametrize("groups, path, named", [
    ([stemma.Group("g", [1], ROLLOUTS)], "groups[0].rollouts[0].token_advantages[1]", "groups[0].rollouts[0].advantage[1]"),
    ([stemma.Group("g", [1], ROLLOUTS)], "groups[0].rollouts[1].response_mask", "groups[0].rollouts[1].response_mask"),
    ([stemma.Group("g", [1], ROLLOUTS)], "groups[0].prompt_tokens", "groups[0].prompt"),
    ([{"uid": "g", "prompt_tokens": [1], "rollouts": ROLLOUTS}], "groups[0].rollouts[0].response_tokens", "groups[0].rollouts[0].tokens"),
    ([{"uid": "g", "prompt_tokens": [1], "rollouts": iter(ROLLOUTS)}], "groups[0].prompt_tokens", "groups[0].prompt_tokens"),
    ([stemma.Group("g", [1], ROLLOUTS)], "groups[7].prompt_tokens", "groups[7].prompt"),
    ([stemma.Group("g", [1], ROLLOUTS)], "update.ppo_mini_batch_size", "mini_batch"),
    ([stemma.Group("g", [1], ROLLOUTS)], "update.request.expected_step", "expected_step"),
    ([stemma.Group("g", [1], ROLLOUTS)], "update.old.weights", "old"),
    ([stemma.Group("g", [1], ROLLOUTS)], "update.loss.clip_ratio_low", "update.loss.clip_ratio_low"),
])
def test_a_field_is_named_as_it_was_given(groups, path, named):
    error = refused(f"{path} is wrong", [(path, "is wrong")], lambda c: c.update_actor(iter(groups), stemma.grpo(), stemma.adamw(1e-6)))
    assert error.fields == [(named, "is wrong")] and error.message == f"{named} is wrong"


def test_a_checkpoint_that_gives_old_log_probs_is_named():
    path = "groups[0].rollouts[0].old_log_probs"
    what = "is set, but only update.old from CLIENT reads it, and that is WEIGHTS; leave it out, or send what reads it"
    error = refused(f"{path} {what}", [(path, what)], lambda c: update(c, old="checkpoint:a"))
    assert 'only old="client" reads it, and that is "checkpoint:a"; leave it out' in error.message


def test_a_header_field_in_a_sentence_has_the_parameters_name():
    what = "is in two mini-batches: put its groups next to each other, without shuffle, or raise ppo_mini_batch_size"
    error = refused(f"groups[0].stat_group {what}", [("groups[0].stat_group", what)], update)
    assert error.fields == [("groups[0].stat_group", what.replace("ppo_mini_batch_size", "mini_batch"))]
    assert error.message == " ".join(error.fields[0])


@pytest.mark.parametrize("lost, lost_step", [("L1", 3), ("L0", None)])
def test_what_this_client_saw_is_told_of_its_own_lineage_alone(lost, lost_step):
    def refuse(parts, context):
        list(parts)
        abort(context, grpc.StatusCode.ABORTED, "gone", "LINEAGE_MISMATCH", metadata={"lineage": "L2", "step": "1", "lost_lineage": lost})

    def call(client):
        assert (client.model()["step"], client.model()["step"]) == (3, 1)  # an answer that is older comes later
        update(client)

    steps = [1, 3]
    handlers = {"UpdateActor": refuse, "GetModel": lambda *_: Model(lineage="L1", step=steps.pop())}
    with pytest.raises(stemma.LineageLostError) as error:
        run(handlers, call)
    assert (error.value.lost_lineage, error.value.lost_step, error.value.lineage, error.value.step) == (lost, lost_step, "L2", 1)
    assert ("this client saw steps up to 3 of L1" in str(error.value)) == (lost == "L1")


def test_a_connection_that_is_lost_has_no_reason_and_a_message_without_grpcs_words():
    with FakeServer({"GetModel": lambda *_: Model(lineage="L1")}) as server:
        client = stemma.Client(server.address, retries=0)
        client.model()
    with client, pytest.raises(stemma.StemmaError) as error:
        client.model()
    assert (error.value.code, error.value.reason) == ("UNAVAILABLE", "")
    assert error.value.message.startswith(f"the connection to the server at {server.address} was lost (")


def test_only_a_request_that_is_not_known_asks_whether_the_server_is_the_same():
    """What it says of one that it knows is its answer, also where it has other weights by then."""
    def refuse(_, context):
        abort(context, grpc.StatusCode.INTERNAL, "the disk is broken", "DISK")

    def taken(parts, _):
        return status(list(parts)[0].update.request.request_id, "ACCEPTED", lineage="L1")

    handlers = {"UpdateActor": taken, "GetRequest": refuse, "GetModel": lambda *_: Model(lineage="L2")}
    with pytest.raises(stemma.StemmaError, match="^INTERNAL DISK: the disk is broken$"):
        run(handlers, update)
