"""Log-probs under a checkpoint's weights (LogProbSource.weights): a reference for the KL term that is not the policy, and old
log-probs of weights that the model no longer has."""

import os
import pathlib

import pytest
import torch

import stemma
from e2e.gang.small_groups import groups_of, make_model
from e2e.recovery.durable_run import STEPS_OF_REQUEST, DurableRun, facts, send, weights_after
from oracle.hf64 import Hf64

TEMPERATURE = 0.7
KL = {"kl_loss_coef": 0.3, "kl_loss_type": "low_var_kl"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


def some_groups(ranks=1):
    return groups_of(77, [(40, 5)] * 2 * ranks)


def train(client, request_id, groups, ranks=1, kl=KL, **sources):
    return client.update_actor(groups, loss=stemma.grpo(**kl), adam=stemma.adamw(1e-3), mini_batch=ranks, epochs=2,
                               request_id=request_id, return_log_probs=True, **sources)


def with_log_probs(groups, field, log_probs):
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        setattr(rollout, field, list(log_probs[rollout.rollout_id].log_probs))
    return groups


def reference(folder, group, rollout):
    logits = Hf64(folder).logits(group.prompt, rollout.tokens) / TEMPERATURE
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(rollout.tokens)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("ranks, shard", [(1, "off"), (2, "off"), (2, "on")])
def test_log_probs_of_a_checkpoint_are_those_of_transformers(model, tmp_path, ranks, shard):
    groups = some_groups(ranks)
    with DurableRun(model, tmp_path, ranks, dtype="fp64", flags=("--shard-parameters", shard)) as run, run.client() as client:
        send(client, 0, ranks)
        folder = client.save_checkpoint("start").path
        for number in (1, 2):
            send(client, number, ranks)
        start, now = (client.log_probs(groups, TEMPERATURE, weights=weights) for weights in ("start", "policy"))
        assert client.log_probs(groups, TEMPERATURE) == now, "the model's own weights are as they were"
    distances, moved = [], []
    for group in groups:
        for rollout in group.rollouts:
            wanted = reference(folder, group, rollout)
            distances += [abs(a - b) for a, b in zip(start[rollout.rollout_id].log_probs, wanted, strict=True)]
            moved += [abs(a - b) for a, b in zip(now[rollout.rollout_id].log_probs, wanted, strict=True)]
    assert max(distances) < 1e-12, max(distances)  # sums of doubles in another order
    assert max(moved) > 1e-3, "control: training has moved the model"


def losses(result):
    return [step.metrics["actor/loss"] for step in result.steps]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("source, field", [("ref", "ref_log_prob"), ("old", "old_log_probs")])
def test_an_update_is_that_of_the_same_log_probs_sent_by_the_client(model, tmp_path, ranks, source, field):
    results = {}
    for way in ("checkpoint:start", "client", "policy"):
        with DurableRun(model, tmp_path / way.replace(":", "-"), ranks) as run, run.client() as client:
            client.save_checkpoint("start")
            sent = with_log_probs(some_groups(ranks), field, client.log_probs(some_groups(ranks)))
            send(client, 0, ranks)
            results[way] = train(client, "with-start", sent if way == "client" else some_groups(ranks), ranks,
                                 **{"old": "policy", "ref": "policy", source: way})
    read, told, own = (losses(results[way]) for way in ("checkpoint:start", "client", "policy"))
    assert results["checkpoint:start"].effective[source] == {"from": "WEIGHTS", "weights": "start"}
    assert read == pytest.approx(told, rel=1e-5, abs=1e-6)  # fp32 log-probs of other waves
    assert max(abs(a - b) for a, b in zip(read, own, strict=True)) > 1e-3, "control: it matters whose log-probs they are"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_checkpoint_of_the_models_weights_is_the_policy_to_the_last_bit(model, tmp_path, ranks, dtype):
    known, weights = {}, {}
    for way in ("checkpoint:here", "policy"):
        with DurableRun(model, tmp_path / way.replace(":", "-"), ranks, dtype=dtype) as run, run.client() as client:
            send(client, 0, ranks)
            client.save_checkpoint("here")
            known[way] = facts(train(client, "with-here", some_groups(ranks), ranks, old="policy", ref=way))
            weights[way] = weights_after(run, "end")
    assert known["checkpoint:here"] == known["policy"]
    assert weights["checkpoint:here"] == weights["policy"]


def test_what_a_pass_exchanges_is_no_part_of_its_step(model, tmp_path):
    """As its seconds and FLOPs: a step has the same bytes whoever computed its old log-probs."""
    sent = {}
    for way in ("policy", "client"):
        with DurableRun(model, tmp_path / way, ranks=2, flags=("--mesh", "tp=2")) as run, run.client() as client:
            groups = some_groups()
            if way == "client":
                with_log_probs(groups, "old_log_probs", client.log_probs(groups))
            result = train(client, "one", groups, kl={}, old=way)
            sent[way] = [step.metrics["ranks/tensor_parallel_bytes"] for step in result.steps]
            assert ("time/log_probs_s" in result.steps[0].metrics) == (way == "policy"), "control: there was a pass"
    assert sent["policy"] == sent["client"] and min(sent["policy"]) > 0
    assert sent["policy"][:2] == sent["policy"][2:], "each epoch has its own: nothing adds up from step to step"


def test_it_is_computed_again_after_everything_was_killed(model, tmp_path):
    weights = {}
    for way in ("undisturbed", "killed"):
        run = DurableRun(model, tmp_path / way)
        with run.client() as client:
            send(client, 0)
            client.save_checkpoint("start")
            send(client, 1)
            train(client, "with-start", some_groups(), old="policy", ref="checkpoint:start")
            with pytest.raises(stemma.StemmaError) as refused:
                client.delete_checkpoint("start")
            assert refused.value.reason == "CHECKPOINT_IN_USE"
            if way == "killed":
                run.kill()
                run = DurableRun(model, tmp_path / way)
        with run, run.client() as client:
            train(client, "after", some_groups(), old="policy", ref="policy")
            weights[way] = weights_after(run, "end")
            for name in ("later", "last"):  # kept requests go with the checkpoint before the newest
                client.save_checkpoint(name)
            assert [known.name for known in client.list_checkpoints()] == ["later", "last"]
    assert weights["killed"] == weights["undisturbed"]


def flip(file):
    content = bytearray(file.read_bytes())
    content[-4] ^= 1  # the lowest bit of the last number: finite, and all but equal
    file.write_bytes(content)


@pytest.mark.parametrize("ranks, damage, says", [
    (1, flip, "its weights are not those that were saved"), (2, flip, "its weights are not those that were saved"),
    (1, lambda file: file.unlink(), "model.safetensors"), (2, lambda file: os.truncate(file, 1000), "model.safetensors")])
def test_weights_that_changed_are_refused_and_nothing_is_applied(model, tmp_path, ranks, damage, says):
    with DurableRun(model, tmp_path, ranks) as run, run.client() as client:
        file = pathlib.Path(client.save_checkpoint("start").path) / "model.safetensors"
        client.save_checkpoint("other")
        damage(file)
        for number, call in enumerate((lambda: client.log_probs(some_groups(ranks), weights="start"),
                                       lambda: train(client, "with-start", some_groups(ranks), ranks, old="policy",
                                                     ref="checkpoint:start"))):
            with pytest.raises(stemma.StemmaError, match=says) as refused:
                call()
            assert (refused.value.code, refused.value.reason) == ("DATA_LOSS", "CORRUPT_CHECKPOINT"), number
            assert client.model()["step"] == 0, number
        train(client, "with-other", some_groups(ranks), ranks, old="policy", ref="checkpoint:other")
        assert client.model()["step"] == STEPS_OF_REQUEST
        with pytest.raises(stemma.StemmaError, match="there is no checkpoint elsewhere"):
            client.log_probs(some_groups(ranks), weights="elsewhere")
