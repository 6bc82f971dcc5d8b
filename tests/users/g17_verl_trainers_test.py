"""verl's trainer around the actor's update: metrics over rollouts of zero advantage, the order of rows, and settings that only
look like others. Beside g17_verl_test, whose batches and comparison with verl's own functions it takes."""

import pytest
import stemma
import torch
from stemma import verl
from tensordict import TensorDict

import real_verl
from real_verl import tensordict_utils as verls
from g17_verl_test import N, SEED, client, compare, model, padded, padded_batch, with_log_probs  # noqa: F401


@pytest.fixture(scope="module")
def half_zero(client, model):  # noqa: F811
    """(batch, log-probs, entropies): the rollouts of uid-0 had equal rewards."""
    data = padded_batch()
    log_prob, entropy = padded(model, data)
    data = with_log_probs(data, log_prob, SEED)
    data.batch["advantages"][torch.tensor([uid == "uid-0" for uid in data.non_tensor_batch["uid"]])] = 0
    return data, log_prob, entropy


def mean_over_mask(data, values):
    mask = data.batch["response_mask"].bool()
    return values[mask].mean().item()


@pytest.mark.parametrize("fields", [{"entropy_coeff": 0, "calculate_entropy": True}, {"entropy_coeff": 0.01},
                                    {"use_kl_loss": True, "kl_loss_coef": 0.0, "calculate_entropy": True}])
def test_g17_what_is_asked_for_is_over_every_token(client, model, half_zero, fields):  # noqa: F811
    """A coefficient of 0 is how verl's users watch the KL and the entropy: nothing of them may be left out."""
    data, log_prob, entropy = half_zero
    config = real_verl.actor_config("vanilla", clip_ratio_low=0.1, clip_ratio_high=0.15, **fields)
    ours = compare(client, model, config, data, log_prob, entropy)
    assert ours["actor/entropy"] == pytest.approx(mean_over_mask(data, entropy), rel=1e-9)
    assert ours["actor/entropy_loss"] == pytest.approx(mean_over_mask(data, entropy), rel=1e-9)  # token-mean
    assert ours["actor/token_coverage"] == 1
    assert ("actor/kl_loss" in ours) == ("use_kl_loss" in fields)


def test_g17_what_is_not_asked_for_is_over_the_tokens_that_ran(client, half_zero):  # noqa: F811
    data, _, entropy = half_zero
    update = real_verl.update_of(real_verl.actor_config("vanilla", entropy_coeff=0))
    result = client.update_actor(verl.groups_from_dataproto(data, update), update.loss, stemma.adamw(0.0, weight_decay=0.0))
    ran = data.batch["response_mask"].bool() & (data.batch["advantages"] != 0)
    share = ran.sum().item() / data.batch["response_mask"].sum().item()
    assert result.metrics["actor/token_coverage"] == pytest.approx(share) and 0 < share < 1
    assert result.metrics["actor/entropy"] == pytest.approx(entropy[ran].mean().item(), rel=1e-9)
    assert "actor/entropy_loss" not in result.metrics


def test_g17_the_entropy_of_verls_trainer_stays(client, half_zero):  # noqa: F811
    """Its update has actor/entropy_loss alone, and metrics.update would put Stemma's number in place of the trainer's."""
    for fields in ({"entropy_coeff": 0}, {"entropy_coeff": 0.01}, {"calculate_entropy": True}):
        update = real_verl.update_of(real_verl.actor_config("vanilla", **fields))
        result = client.update_actor(verl.groups_from_dataproto(half_zero[0], update), update.loss, stemma.adamw(0.0))
        assert "actor/entropy" in result.metrics and "actor/entropy" not in verl.metrics(result)
        assert ("actor/entropy_loss" in verl.metrics(result)) == (fields != {"entropy_coeff": 0})


def in_order(data, rows):
    data.reorder(torch.tensor(rows))
    return data


def rows_by_uid(data):
    return sorted(range(len(data)), key=lambda row: data.non_tensor_batch["uid"][row])


def test_g17_mini_batches_are_those_of_verls_rows():
    """verl's trainer may reorder rows (balance_batch), and cuts mini-batches of consecutive ones."""
    config = real_verl.actor_config(ppo_mini_batch_size=1, rollout_n=N)
    update = real_verl.update_of(config)
    whole = in_order(padded_batch(), rows_by_uid(padded_batch()))
    assert [len(group.rollouts) for group in verl.groups_from_dataproto(whole, update)] == [N] * 3
    mixed = rows_by_uid(padded_batch())
    mixed[0], mixed[-1] = mixed[-1], mixed[0]
    for rows in (mixed, list(range(3 * N))):  # a batch's own order is shuffled
        with pytest.raises(ValueError, match=r"is of verl's mini-batch \d, .*balance_batch=False"):
            verl.groups_from_dataproto(in_order(padded_batch(), rows), update)
    for others in ({"ppo_mini_batch_size": 3}, {"ppo_mini_batch_size": 1, "shuffle": True}):
        verl.groups_from_dataproto(padded_batch(), real_verl.update_of(real_verl.actor_config(rollout_n=N, **others)))


def verls_mini_batches(num_rows, mini_batch_rows, dp_size):
    """Rows of each mini-batch, by verl's own dispatch and iterator: the ranks' i-th parts are the i-th mini-batch."""
    rows = TensorDict({"row": torch.arange(num_rows)}, batch_size=[num_rows])
    parts = [[batch["row"].tolist() for batch in verls.make_iterator(share, mini_batch_rows // dp_size, epochs=1)]
             for share in verls.chunk_tensordict(rows, dp_size)]
    return [sorted(row for part in of_ranks for row in part) for of_ranks in zip(*parts)]


def cut(groups, mini_batch):
    """Rows of each of Stemma's mini-batches."""
    return [sorted(int(rollout.rollout_id) for group in groups[first:first + mini_batch] for rollout in group.rollouts)
            for first in range(0, len(groups), mini_batch)]


@pytest.mark.parametrize("dp_size, mini_batch", [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 3), (4, 2), (6, 6), (2, 3)])
@pytest.mark.parametrize("dealt", ["prompt by prompt", "a prompt's rows to all ranks"])
def test_g17_mini_batches_are_those_of_verls_ranks(dp_size, mini_batch, dealt):
    """Each of verl's data-parallel ranks has its own share of the rows, and cuts that into mini-batches."""
    prompts = 6
    data = padded_batch(prompts=prompts)
    rows = rows_by_uid(data)
    if dealt != "prompt by prompt":
        rows = [rows[i] for share in range(dp_size) for i in range(len(rows)) if i % N * dp_size // N == share]
    data = in_order(data, rows)
    update = real_verl.update_of(real_verl.actor_config(ppo_mini_batch_size=mini_batch, rollout_n=N))
    theirs = verls_mini_batches(prompts * N, mini_batch * N, dp_size)
    uids = [{data.non_tensor_batch["uid"][row] for row in part} for part in theirs]
    if sum(map(len, uids)) > prompts:  # one of verl's mini-batches has a part of a prompt's rows
        with pytest.raises(ValueError, match=f"where verl has dp_size={dp_size} ranks"):
            verl.groups_from_dataproto(data, update, dp_size=dp_size)
    else:
        assert cut(verl.groups_from_dataproto(data, update, dp_size=dp_size), mini_batch) == theirs


def test_g17_a_number_of_ranks_that_verl_could_not_have_is_refused():
    data = in_order(padded_batch(prompts=4), rows_by_uid(padded_batch(prompts=4)))
    update = real_verl.update_of(real_verl.actor_config(ppo_mini_batch_size=2, rollout_n=N))
    for dp_size in (3, 16):  # of 16 rows, and of the 8 of a mini-batch
        with pytest.raises(ValueError, match=f"dp_size is {dp_size}: verl deals as many rows to each rank, of the 16"):
            verl.groups_from_dataproto(data, update, dp_size=dp_size)
    for dp_size in (0, 1.5, None):
        with pytest.raises(ValueError, match="dp_size is .*: pass a whole number from 1 on"):
            verl.groups_from_dataproto(data, update, dp_size=dp_size)
    natural = verl.groups_from_dataproto(data, update)
    of_two = verl.groups_from_dataproto(data, update, dp_size=2)
    assert [group.uid for group in natural] == ["uid-0", "uid-1", "uid-2", "uid-3"]
    assert [group.uid for group in of_two] == ["uid-0", "uid-2", "uid-1", "uid-3"]


@pytest.mark.parametrize("fields, says", [
    ({"optim": {"lr_warmup_steps_ratio": 0.1}}, "actor.optim.total_training_steps is -1: lr_warmup_steps_ratio 0.1"),
    ({"optim": {"optimizer": "Adam", "weight_decay": 0.1}}, "'Adam' with a weight_decay of 0.1"),
    ({"optim": {"optimizer": "Adam"}}, "'Adam' with a weight_decay of 0.01"),
    ({"policy_loss": {"rollout_correction": {"bypass_mode": True, "loss_type": "reinforce"}}}, "bypass_mode is True"),
])
def test_g17_what_only_looks_like_a_setting_of_stemma_is_refused(fields, says):
    with pytest.raises(ValueError) as error:
        real_verl.update_of(fields)
    assert says in str(error.value)


def test_g17_what_is_the_same_is_taken():
    adam = real_verl.update_of({"optim": {"optimizer": "Adam", "weight_decay": 0.0}}).adam
    assert adam == real_verl.update_of({"optim": {"optimizer": "AdamW", "weight_decay": 0.0}}).adam
    steps = real_verl.update_of({"optim": {"lr": 1.0, "lr_warmup_steps_ratio": 0.1, "total_training_steps": 20}})
    assert [steps.learning_rate(step) for step in range(3)] == [0, 0.5, 1]
    correction = {"policy_loss": {"rollout_correction": {"bypass_mode": False, "rollout_is": "token"}}}
    assert "policy_loss.rollout_correction" in real_verl.update_of(correction).dropped
    assert real_verl.update_of({}).arguments()["on_nonfinite"] == "skip"


def test_g17_a_step_without_a_gradient_is_made_where_a_coefficient_is_set(client, half_zero):  # noqa: F811
    """torch's AdamW goes on by its moments; without a coefficient nothing is computed, and weights stay."""
    data = half_zero[0]
    update = real_verl.update_of(real_verl.actor_config("gpg"))
    client.update_actor(verl.groups_from_dataproto(data, update), **update.arguments())
    data = padded_batch()
    data.batch["advantages"] = torch.zeros_like(data.batch["advantages"])
    for fields, outcome in (({}, "SKIPPED_EMPTY"), ({"calculate_entropy": True}, "APPLIED")):
        update = real_verl.update_of(real_verl.actor_config("gpg", **fields))
        groups = verl.groups_from_dataproto(data, update)
        before = client.log_probs(groups)
        assert client.update_actor(groups, **update.arguments()).steps[0].outcome == outcome
        changed = any(client.log_probs(groups)[name].log_probs != rollout.log_probs for name, rollout in before.items())
        assert changed == (outcome == "APPLIED")


def test_g17_warm_ups_are_one_step_ahead_of_those_of_transformers():
    """As the table of TRL's arguments says: from its end on the rates are the same."""
    from transformers import get_linear_schedule_with_warmup

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=4, num_training_steps=10)
    ours = stemma.linear(1.0, 10, warmup_steps=4)
    for step in range(10):
        theirs = scheduler.get_last_lr()[0]
        assert theirs == pytest.approx(step / 4 if step < 4 else ours(step))
        if 0 < step < 4:
            assert theirs == ours(step - 1)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("section", ["policy_loss", "optim", "qat", "router_replay"])
def test_g17_a_section_that_is_null_is_one_that_is_absent(section):
    base = {"ppo_mini_batch_size": 4}
    null, absent = (vars(real_verl.update_of(config)) for config in ({**base, section: None}, base))
    assert {**null, "dropped": {}} == {**absent, "dropped": {}}
