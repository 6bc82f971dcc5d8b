"""G17: stemma.verl under verl's V1 trainer: its TensorDicts of rows without padding against the padded batches of the legacy one,
its own ppo_loss over them, and the trainer of docs/verl.md in verl's own class."""

import dataclasses
import pathlib
import re
import subprocess
import sys

import numpy
import pytest
import real_verl
import real_verl_v1
import stemma
import torch
from g17_verl_config_test import trainers
from g17_verl_test import N, PROMPT_WIDTH, SEED, client, model, padded, padded_batch, with_log_probs  # noqa: F401
from oracle.hf64 import log_probs_and_entropy
from real_verl import tensordict_utils as verls
from stemma import verl
from tensordict import NonTensorData, TensorDict
from verl.trainer.ppo import padding_utils
from verl.trainer.ppo.v1 import trainer_base
from verl.workers.utils.losses import ppo_loss

import fake_transfer_queue as tq

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "verl.md").read_text()
ARRAYS = ("response_mask", "advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights")


def rows_of(data):
    """A dict for each row of a padded batch, without the padding."""
    out = []
    for row, uid in enumerate(data.non_tensor_batch["uid"]):
        attention = data.batch["attention_mask"][row].bool()
        prompt, response = attention[:PROMPT_WIDTH], attention[PROMPT_WIDTH:]
        made = {"uid": uid, "prompts": data.batch["prompts"][row][prompt], "responses": data.batch["responses"][row][response],
                "multi_modal_inputs": {}}
        made["input_ids"] = torch.cat([made["prompts"], made["responses"]])
        out.append({**made, **{name: data.batch[name][row][response] for name in ARRAYS if name in data.batch.keys()}})
    return out


def ragged(data):
    return verls.list_of_dict_to_tensordict(rows_of(data))


@pytest.fixture(scope="module")
def now(client, model):  # noqa: F811
    data = padded_batch(several_prompts=True)
    return with_log_probs(data, padded(model, data)[0], SEED)


def plain(groups):
    """What is sent of them."""
    as_list = lambda value: numpy.asarray(value).tolist() if isinstance(value, (numpy.ndarray, list)) else value  # noqa: E731
    return [(group.uid, as_list(group.prompt), group.stat_group,
             [{name: as_list(value) for name, value in dataclasses.asdict(rollout).items()} for rollout in group.rollouts])
            for group in groups]


@pytest.mark.parametrize("mode, fields", [("vanilla", {"use_kl_loss": True}), ("gspo", {}), ("gpg", {})])
def test_g17_rows_without_padding_are_the_groups_of_the_padded_ones(now, mode, fields):
    update = real_verl.update_of(real_verl.actor_config(mode, **fields))
    theirs = plain(verl.groups_from_dataproto(now, update))
    assert plain(verl.groups_from_tensordict(ragged(now), update)) == theirs
    assert plain(verl.groups_for_log_probs(ragged(now))) == plain(verl.groups_for_log_probs(now))
    assert len(theirs) == 3 and [group[2] for group in theirs].count("uid-0") == 2


def test_g17_rows_of_one_length_and_of_one_uid_are_read():
    """verl stacks rows of one length, and a TensorDict may keep one value for all rows."""
    rows = [{"uid": "a", "prompts": torch.tensor([3, 4]), "responses": torch.tensor([row, 7]), "advantages": torch.tensor([1.0, 1.0])}
            for row in range(3)]
    data = verls.list_of_dict_to_tensordict(rows)
    assert not data["responses"].is_nested
    one = TensorDict({**{name: data[name] for name in ("prompts", "responses", "advantages")},
                      "uid": NonTensorData("a", batch_size=[3])}, batch_size=[3])
    for made in (data, one):
        [group] = verl.groups_from_tensordict(made, real_verl.update_of({}))
        assert [list(rollout.tokens) for rollout in group.rollouts] == [[0, 7], [1, 7], [2, 7]]
        assert [rollout.mask for rollout in group.rollouts] == [None] * 3


# verl's own loss, over its rows of padding.

def with_padding(data, monkeypatch, multiple=5):
    """The rows and verl's own of padding, up to a multiple."""
    monkeypatch.setattr(padding_utils, "SYNTHETIC_PADDING_SEQ_LEN", 20)  # the model has fewer positions than verl's 128
    rows = rows_of(data)
    template, tag = padding_utils.construct_minimal_padding_template(rows[0], {}, eos_token_id=2)
    assert tag["is_padding"] and len(rows) % multiple
    for name in ARRAYS[1:]:
        template[name] = torch.zeros(1, dtype=rows[0][name].dtype)
    return rows + [{**{name: template[name] for name in rows[0]}, "uid": "pad0"} for _ in range(-len(rows) % multiple)]


def verls_loss(config, model, rows):  # noqa: F811
    """ppo_loss of verl's engines on a model's log-probs, with the numbers of a whole mini-batch."""
    log_probs, entropies = [], []
    for row in rows:
        answer = row["responses"].tolist()
        made = log_probs_and_entropy(model.logits(row["prompts"].tolist(), answer), answer, 1.0)
        for values, out in zip(made, (log_probs, entropies)):
            out.append(torch.nn.functional.pad(values, (len(row["prompts"]) - 1, 1)))  # of all tokens, each of the next one
    nested = lambda values: torch.nested.as_nested_tensor(values, layout=torch.jagged)  # noqa: E731
    data = verls.list_of_dict_to_tensordict([{name: value.double() if value.is_floating_point() else value
                                              for name, value in row.items() if isinstance(value, torch.Tensor)} for row in rows])
    verls.assign_non_tensor(data, dp_size=1, batch_num_tokens=sum(int(row["response_mask"].sum()) for row in rows),
                            global_batch_size=len(rows))
    loss, _ = ppo_loss(config, {"log_probs": nested(log_probs), "entropy": nested(entropies)}, data)
    return loss


@pytest.mark.parametrize("mode, agg", [("vanilla", "token-mean"), ("vanilla", "seq-mean-token-mean"), ("gspo", "seq-mean-token-sum"),
                                       ("cispo", "seq-mean-token-sum-norm"), ("gpg", "token-sum")])
def test_g17_the_loss_is_verls_own_with_its_rows_of_padding(client, model, now, monkeypatch, mode, agg):  # noqa: F811
    rows = with_padding(now, monkeypatch)
    config = real_verl.actor_config(mode, loss_agg_mode=agg, loss_scale_factor=11 if agg.endswith("norm") else None,
                                    clip_ratio_low=0.1, clip_ratio_high=0.15, use_kl_loss=True, kl_loss_coef=0.125,
                                    kl_loss_type="low_var_kl", entropy_coeff=0.03125, calculate_entropy=True)
    loss = verls_loss(config, model, rows)
    model.zero_grad()
    loss.backward()
    grad_norm = sum(g.square().sum() for g in model.gradients().values()).sqrt().item()
    update = real_verl.update_of(config)
    arguments = {**update.arguments(), "adam": dataclasses.replace(update.adam, learning_rate=0.0)}

    def ours(kept):
        groups = verl.groups_from_tensordict(verls.list_of_dict_to_tensordict(kept), update)
        return verl.metrics(client.update_actor(groups, **arguments))

    # float64 both; old, reference and weights are the same float32 numbers. The sums run in another order.
    made = ours(rows)
    assert made["actor/loss"] == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    assert made["actor/grad_norm"] == pytest.approx(grad_norm, rel=1e-8)
    without = ours(rows[:len(now)])["actor/grad_norm"]
    if agg.startswith("seq-mean"):  # as the page says
        assert without == pytest.approx(grad_norm * len(rows) / len(now), rel=1e-8)
    else:
        assert without == pytest.approx(grad_norm, rel=1e-8)


# The page's trainer, in verl's own class.

class Page:
    """The trainer of the page over a batch of rollouts, as verl's own loop calls it."""

    def __init__(self, monkeypatch, client, **changes):  # noqa: F811
        [code] = re.findall(r"## The V1 trainer.*?```python\n(.*?)```", PAGE, re.S)
        monkeypatch.setitem(trainer_base.TRAINER_REGISTRY, "sync", None)
        names = {}
        exec(code, names)
        assert trainer_base.TRAINER_REGISTRY["sync"] is names["StemmaTrainer"]
        self.trainer = object.__new__(names["StemmaTrainer"])
        self.trainer.config = trainers(**{"algorithm.adv_estimator": "grpo", "actor_rollout_ref.actor.ppo_mini_batch_size": 3,
                                          "actor_rollout_ref.actor.optim.lr_warmup_steps": 8, "trainer.use_v1": True, **changes})
        self.trainer.global_steps, self.trainer.parameter_sync_step, self.trainer.local_trigger_step = 3, 2, 1
        monkeypatch.setattr(real_verl_v1.trainer_sync.PPOTrainerSync, "init", lambda self: None)
        monkeypatch.setattr(stemma, "Client", lambda address: client)
        self.trainer.init()

    def step(self, rows):
        """(metrics, what is in the queue): the calls of verl's _step_once that reach an actor, and its own advantages."""
        tq.ROWS.clear()
        keys = [f"{row['uid']}_{number}_0" for number, row in enumerate(rows)]
        tags = [{"seq_len": len(row["input_ids"])} for row in rows]
        batch, metrics = tq.kv_batch_put(keys, "train", verls.list_of_dict_to_tensordict(rows), tags), {}
        batch = self.trainer._balance_batch(batch, metrics=metrics)
        batch = self.trainer._compute_old_log_prob(batch, metrics=metrics)
        batch = self.trainer._compute_ref_log_prob(batch, metrics=metrics)
        batch = self.trainer._compute_advantage(batch, metrics=metrics)  # verl's own
        batch = self.trainer._update_actor(batch, metrics=metrics)
        assert batch.keys == keys
        return metrics, [tq.ROWS["train"][key] for key in keys]


def sampled(data):
    """Rows as verl's agent loops leave them: no log-probs, no advantages, a score at the end of each response."""
    rows = rows_of(data)
    for number, row in enumerate(rows):
        row["rm_scores"] = torch.zeros(len(row["responses"]))
        row["rm_scores"][-1] = number % 3
        row["loss_mask"] = row["response_mask"]
        for name in ("advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights"):
            row.pop(name, None)
    return rows


def test_g17_the_pages_trainer_runs_a_step_of_verls(client, model, monkeypatch):  # noqa: F811
    data = padded_batch()
    theirs = padded(model, data)[0].detach()
    page = Page(monkeypatch, client, **{"actor_rollout_ref.actor.use_kl_loss": True})
    client.save_checkpoint("reference")
    metrics, rows = page.step(sampled(data))
    # float64 at the server; float32 rounds what comes back.
    for row, expected in zip(rows, theirs):
        assert row["old_log_probs"].tolist() == pytest.approx(expected[:len(row["responses"])].tolist(), abs=1e-6)
        assert torch.equal(row["ref_log_prob"], row["old_log_probs"]) and len(row["entropy"]) == len(row["responses"])
    by_uid = {}
    for number, row in enumerate(rows):
        by_uid.setdefault(row["uid"], []).append(number % 3)
    for number, row in enumerate(rows):  # GRPO by hand
        scores = torch.tensor(by_uid[row["uid"]], dtype=torch.float32)
        expected = ((number % 3) - scores.mean()) / (scores.std() + 1e-6) * row["response_mask"]
        assert row["advantages"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert metrics["actor/lr"] == pytest.approx(5 / 8 * 1e-6)  # the sixth update of the actor: two in each of verl's steps
    assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6) and metrics["actor/kl_loss"] == pytest.approx(0, abs=1e-9)
    assert metrics["actor/grad_norm"] > 0 and "perf/mfu/actor" in metrics


def test_g17_verls_bypass_mode_reaches_no_actor_under_v1(client, monkeypatch):  # noqa: F811
    """Old log-probs are the rollout's, the loss stays: as the page says."""
    page = Page(monkeypatch, client, **{"algorithm.rollout_correction.bypass_mode": True})
    base = real_verl_v1.trainer_sync.PPOTrainerSync
    monkeypatch.setattr(type(page.trainer), "_compute_old_log_prob", base._compute_old_log_prob)
    rows = sampled(padded_batch())
    for row in rows:
        row["rollout_log_probs"] = -torch.ones(len(row["responses"]))
    _, kept = page.step(rows)
    assert all((row["old_log_probs"] == -1).all() for row in kept)
    assert page.trainer.config.actor_rollout_ref.actor.policy_loss.loss_mode == "vanilla" == page.trainer.update.loss.loss_mode
    legacy = trainers(**{"algorithm.rollout_correction.bypass_mode": True})
    with pytest.raises(ValueError, match="bypass_mode is True: in its first step verl's legacy trainer"):
        verl.loss_from_config(legacy)


def test_g17_a_trainer_under_another_name_would_be_another(client, monkeypatch):  # noqa: F811
    """Why the page's trainer takes the place of "sync": verl chooses by that name what feeds it."""
    source = pathlib.Path(trainer_base.__file__).read_text()
    assert 'ReplayBuffer if self.trainer_mode == "sync" else ReplayBufferAsync' in source


def test_g17_verl_imports_the_module_that_the_page_names(tmp_path):
    (tmp_path / "stemma_trainer.py").write_text("print('imported')\n")
    users = pathlib.Path(__file__).resolve().parent
    code = f"import sys; sys.path[:0] = [{str(users)!r}, {str(users.parent)!r}]; import real_verl"
    env = {"VERL_USE_EXTERNAL_MODULES": "stemma_trainer", "PYTHONPATH": f"{tmp_path}:{pathlib.Path(stemma.__file__).parents[1]}",
           "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "imported" in done.stdout, done.stderr
    assert "VERL_USE_EXTERNAL_MODULES=stemma_trainer" in PAGE


# What is no such batch.

def changed(data, **columns):
    rows = rows_of(data)
    for name, change in columns.items():
        for number, row in enumerate(rows):
            row[name] = change(number, row.get(name))
    return verls.list_of_dict_to_tensordict(rows)


@pytest.mark.parametrize("columns, says", [
    ({"advantages": lambda row, values: values[:-1] if row == 4 else values}, r"^row 4 of advantages has \d+ entries: it must have \d+"),
    ({"response_mask": lambda row, values: torch.ones(30)}, "^row 0 of response_mask has 30 entries"),
    ({"multi_modal_inputs": lambda row, _: {"pixels": 1} if row == 2 else {}}, "^multi_modal_inputs of a row are not empty: Stemma"),
    ({"old_log_probs": lambda row, values: torch.zeros(2, 3)}, "^old_log_probs has shape")])
def test_g17_rows_that_do_not_fit_are_refused_by_name(now, columns, says):
    with pytest.raises(ValueError, match=says):
        verl.groups_from_tensordict(changed(now, **columns), real_verl.update_of({}))


@pytest.mark.parametrize("name, says", [("uid", "the TensorDict lacks uid: get stemma.verl.FIELDS"), ("prompts", "lacks prompts"),
                                        ("advantages", "lacks advantages: .*stemma.verl.log_probs"),
                                        ("ref_log_prob", "use_kl_loss is on, but the batch lacks ref_log_prob")])
def test_g17_a_field_that_is_needed_is_missed_by_name(now, name, says):
    data = ragged(now)
    del data[name]
    with pytest.raises(ValueError, match=says):
        verl.groups_from_tensordict(data, real_verl.update_of(real_verl.actor_config(use_kl_loss=True)))


def test_g17_the_keys_alone_are_no_rows():
    batch = tq.kv_batch_put(["a"], "train")
    with pytest.raises(TypeError, match="^data is a KVBatchMeta, which has no batch: .*tq.kv_batch_get returns for the keys"):
        verl.groups_from_tensordict(batch, real_verl.update_of({}))
