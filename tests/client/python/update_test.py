"""The messages of an update: what is asked of the groups before anything is sent, and by which names it is said."""

import pathlib
import sys

import grpc
import numpy
import pytest
import stemma
from stemma import _proto
from stemma._update import update_parts
from stemma.groups import first_without, name_uids, parts as encode

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from fake_server import FakeServer, abort  # noqa: E402

UID = "u" * 255


def groups_of(*rollouts):
    return [stemma.Group("g0", [1], list(rollouts))]


def parts_of(groups, old="auto", ref="auto", loss=None, **options):
    return update_parts(groups, loss or stemma.grpo(), stemma.adamw(1e-6), old, ref, **options)


@pytest.mark.parametrize("old, ref, field", [("client", None, "old_log_probs"), ("rollout", None, "rollout_log_probs"),
                                             ("policy", "client", "ref_log_prob")])
def test_log_probs_that_are_read_come_with_every_rollout_that_has_tokens(old, ref, field):
    with_it, without, empty = (stemma.Rollout([8], **{field: [-1.0]}), stemma.Rollout([8]), stemma.Rollout([]))
    parts_of(groups_of(with_it, empty), old, ref)
    asked, instead = (f'ref="{ref}"', 'ref="checkpoint:NAME"') if ref else (f'old="{old}"', 'old="policy"')
    with pytest.raises(ValueError) as error:
        parts_of(groups_of(with_it, empty, without), old, ref)
    assert str(error.value) == (f"groups[0].rollouts[2] lacks {field}, which {asked} reads: send it with every Rollout, or with none "
                                f"and say {instead}")


def test_a_rollout_in_a_further_message_is_found_by_its_place():
    many = [stemma.Group("a", [1], []), stemma.Group("b", [1], [
        stemma.Rollout(list(range(50)), ref_log_prob=None if i == 17 else [-1.0] * 50) for i in range(20)])]
    messages = encode("update", _proto.UpdateHeader(), many, message_bytes_max=600)
    assert sum(part.HasField("more") for part in messages) > 2
    assert first_without(messages, "ref_log_prob") == "groups[1].rollouts[17]"


@pytest.mark.parametrize("options, says", [
    ({"mini_batch": "2"}, "mini_batch is '2': pass a whole number from 1 to 18446744073709551615"),
    ({"epochs": -1}, "epochs is -1: pass a whole number from 1 to 4294967295"),
    ({"epochs": True}, "epochs is True: pass a whole number from 1"), ({"epochs": False}, "epochs is False: pass a whole number"),
    ({"mini_batch": True}, "mini_batch is True: pass a whole number"), ({"seed": True}, "seed is True: pass a whole number from 0"),
    ({"mini_batch": numpy.True_}, "mini_batch is .*True.*: pass a whole number"),
    ({"loss": stemma.grpo(clip_ratio_low=True)}, "loss.clip_ratio_low is True: pass a number"),
    ({"request": {"schedule": "fast"}}, "schedule: 'fast' is none of AUTO, REUSE, DENSE"),
    ({"request": {"expected_step": 0.5}}, "expected_step is 0.5: pass a whole number"),
    ({"request": {"on_nonfinite": "stop"}}, "on_nonfinite: 'stop' is none of"),
    ({"loss": {"loss_mode": "gpg", "temperature": "1"}}, "loss.temperature is '1': pass a number"),
    ({"old": 5}, "old: log-probs come from 5"), ({"ref": "reference"}, "ref: log-probs come from 'reference'"),
    ({"old": {"weight": "policy"}}, "LogProbSource has no field 'weight'")])
def test_what_is_wrong_is_named_as_the_parameter_is(options, says):
    with pytest.raises(ValueError, match=f"(^|: ){says}"):
        parts_of(groups_of(stemma.Rollout([8], reward=1.0)), **options)


OLD, ENGINE = {"old_log_probs": [-1.0]}, {"rollout_log_probs": [-1.0]}


@pytest.mark.parametrize("fields, says", [
    ([{}, {**OLD, **ENGINE}], r"groups\[0\].rollouts\[1\] carries both old_log_probs and rollout_log_probs"),
    ([{}, OLD, ENGINE], r"groups\[0\].rollouts\[1\] carries old_log_probs and groups\[0\].rollouts\[2\] rollout_log_probs")])
def test_rollouts_that_carry_both_kinds_of_old_log_probs_are_named(fields, says):
    with pytest.raises(ValueError, match=f"^{says}, and a loss reads one of them"):
        parts_of(groups_of(*(stemma.Rollout([8], reward=1.0, **f) for f in fields)))


def test_sources_may_be_dicts_in_the_traces_names():
    header = parts_of(groups_of(stemma.Rollout([8], reward=1.0)), {"from": "WEIGHTS", "weights": "start"})[0].update
    assert _proto.to_dict(header)["old"] == {"from": "WEIGHTS", "weights": "start"} and not header.HasField("ref")


def too_long(parts, context):
    """A server's refusal of every rollout_id beyond 256 bytes."""
    rollouts = [(f"groups[{g}].rollouts[{r}].rollout_id", rollout.rollout_id)
                for g, part in enumerate(p for p in parts if p.HasField("group")) for r, rollout in enumerate(part.group.rollouts)]
    fields = [(path, f"has {len(text)} bytes, the limit is 256") for path, text in rollouts if len(text) > 256]
    abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"{' '.join(fields[0])} (uid x); and 1 more problem", "INVALID_REQUEST",
          fields, {"uid": "x"})


@pytest.mark.parametrize("call", [lambda c, g: c.update_actor(g, stemma.grpo(), stemma.adamw(1e-6)),
                                  lambda c, g: c.plan(g, stemma.grpo(), stemma.adamw(1e-6)), lambda c, g: c.log_probs(g)],
                         ids=["update_actor", "plan", "log_probs"])
def test_a_uid_that_makes_an_id_too_long_is_the_field_that_is_named(call):
    groups = [stemma.Group("short", [1], [stemma.Rollout([2], rollout_id="r" * 300)]),
              stemma.Group(UID, [1], [stemma.Rollout([2]), stemma.Rollout([3])])]
    refuse = {"UpdateActor": too_long, "ComputeLogProb": too_long}
    with FakeServer(refuse) as server, stemma.Client(server.address) as client:
        with pytest.raises(stemma.StemmaError) as own:
            call(client, groups)
        with pytest.raises(stemma.StemmaError) as made:
            call(client, groups[1:])
    assert own.value.fields[0] == ("groups[0].rollouts[0].rollout_id", "has 300 bytes, the limit is 256")
    [(path, what)] = made.value.fields
    assert path == "groups[0].uid" and "has 255 bytes" in what and "more than 256" in what and "a shorter uid" in what
    assert str(made.value).startswith(f"INVALID_ARGUMENT INVALID_REQUEST: {path} {what} (uid x); and 1 more")
    assert (made.value.reason, made.value.uid) == ("INVALID_REQUEST", "x")


def test_other_problems_of_ids_stay_as_they_are():
    messages = encode("update", _proto.UpdateHeader(), [stemma.Group("a", [1], [stemma.Rollout([2])])])
    for fields in ([], [("groups[0].rollouts[0].rollout_id", "is \"a/0\", as that of groups[1].rollouts[0]")],
                   [("groups[0].uid", "has 300 bytes, the limit is 256")]):
        assert name_uids(fields, messages) == fields


def test_every_parameter_is_sent_under_the_name_that_the_server_reads():
    headers = []

    def keep(parts, context):
        part = next(parts)
        headers.append(_proto.to_dict(getattr(part, part.WhichOneof("part"))))
        abort(context, grpc.StatusCode.INVALID_ARGUMENT, "kept", "KEPT")

    groups = [stemma.Group(f"g{i}", [1, 2], [stemma.Rollout([3], advantage=1.0)]) for i in range(4)]
    losses, order = (stemma.grpo(), stemma.adamw(1e-6)), {"mini_batch": 2, "epochs": 3, "shuffle": True, "seed": 7}
    with FakeServer({"UpdateActor": keep, "ComputeLogProb": keep}) as server, stemma.Client(server.address) as client:
        for call in (lambda: client.submit(groups, *losses, **order, schedule="dense", request_id="r", expected_step=5, trace_step=1,
                                           on_nonfinite="skip", return_log_probs=True),
                     lambda: client.plan(groups, *losses, **order, schedule="reuse"),
                     lambda: client.log_probs(groups, 0.5, True, "kept", "reuse"), lambda: client.log_probs(groups)):
            with pytest.raises(stemma.StemmaError, match="KEPT"):
                call()
    submitted, planned, asked, plain = headers
    sent = {"ppo_mini_batch_size": 2, "ppo_epochs": 3, "shuffle": True, "seed": 7, "num_groups": 4}
    assert sent.items() <= planned.items() and {**sent, "return_log_probs": True, "trace_step": 1}.items() <= submitted.items()
    assert submitted["request"] == {"request_id": "r", "expected_step": 5, "schedule": "DENSE", "on_nonfinite": "SKIP", "wait_ms": 0,
                                    "validate_only": False}
    assert (planned["request"]["schedule"], planned["request"]["validate_only"]) == ("REUSE", True)
    assert (asked["temperature"], asked["entropy"], asked["weights"], asked["request"]["schedule"]) == (0.5, True, "kept", "REUSE")
    assert (plain["temperature"], plain["entropy"], plain["weights"]) == (1.0, False, "policy")
