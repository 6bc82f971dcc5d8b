"""G17: stemma.verl against the real verl: its DataProto, its configuration classes, its loss functions; Stemma's numbers come
from a real server, gradients of verl's losses from transformers in float64."""

import dataclasses
import itertools
import math
import pathlib
import random

import numpy
import pytest
import real_verl
import stemma
import torch
import yaml
from e2e.errors.server import MODEL, Cluster
from oracle.hf64 import Hf64, log_probs_and_entropy
from stemma import verl

SEED = 17_017
VOCAB, PROMPT_WIDTH, RESPONSE_WIDTH, N = 48, 9, 7, 4
PAD = 0
MODES = ("vanilla", "gspo", "cispo", "gpg")
AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def padded_batch(seed=SEED, prompts=3, n=N, several_prompts=False):
    """A DataProto of prompts * n rows in a shuffled order: prompts padded on the left, responses on the right, holes in the
    response mask (tool output), one response wholly masked."""
    rng = random.Random(seed)
    rows = []
    for p in range(prompts):
        uid = f"uid-{p // 2 if several_prompts else p}"
        prompt = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(3, PROMPT_WIDTH + 1))]
        for i in range(n):
            response = [rng.randrange(1, VOCAB) for _ in range(rng.randrange(2, RESPONSE_WIDTH + 1))]
            mask = [int(rng.random() < 0.8) for _ in response]
            if not any(mask):
                mask[0] = 1
            if p == 1 and i == 2:
                mask = [0] * len(response)
            rows.append((uid, prompt, response, mask, rng.choice([-1.75, -0.5, 0.25, 1.5])))
    rng.shuffle(rows)
    left = lambda values, width: [PAD] * (width - len(values)) + values  # noqa: E731
    right = lambda values, width: values + [PAD] * (width - len(values))  # noqa: E731
    prompts_t = torch.tensor([left(p, PROMPT_WIDTH) for _, p, *_ in rows])
    responses_t = torch.tensor([right(r, RESPONSE_WIDTH) for _, _, r, *_ in rows])
    attention = torch.tensor([left([1] * len(p), PROMPT_WIDTH) + right([1] * len(r), RESPONSE_WIDTH) for _, p, r, *_ in rows])
    mask_t = torch.tensor([right(m, RESPONSE_WIDTH) for *_, m, _ in rows])
    advantages = torch.tensor([[a] * RESPONSE_WIDTH for *_, a in rows]) * mask_t
    tensors = {"prompts": prompts_t, "responses": responses_t, "attention_mask": attention, "response_mask": mask_t,
               "input_ids": torch.cat([prompts_t, responses_t], 1), "advantages": advantages}
    return real_verl.DataProto.from_dict(tensors=tensors, non_tensors={"uid": numpy.array([r[0] for r in rows], dtype=object)},
                                         meta_info={"temperature": 1.0})


@pytest.fixture(scope="module")
def client():
    with Cluster(flags=("--dtype", "fp64")) as cluster, stemma.Client(cluster.address) as client:
        yield client


@pytest.fixture(scope="module")
def model():
    return Hf64(MODEL)


def padded(model, data, temperature=1.0):
    """(log-probs, entropies) of the batch's responses in the shape of `responses`, with gradient."""
    log_probs, entropies = [], []
    for prompt, response, attention in zip(data.batch["prompts"], data.batch["responses"], data.batch["attention_mask"]):
        tokens = prompt[attention[:PROMPT_WIDTH] > 0].tolist()
        answer = response[attention[PROMPT_WIDTH:] > 0].tolist()
        rows, entropy = log_probs_and_entropy(model.logits(tokens, answer), answer, temperature)
        log_probs.append(torch.nn.functional.pad(rows, (0, RESPONSE_WIDTH - len(answer))))
        entropies.append(torch.nn.functional.pad(entropy, (0, RESPONSE_WIDTH - len(answer))))
    return torch.stack(log_probs), torch.stack(entropies)


def with_log_probs(data, log_probs, seed):
    """Old, reference and importance numbers beside the log-probs of now, exact in float32: some inside the clip, some beyond."""
    rng = numpy.random.default_rng(seed)
    shape = tuple(log_probs.shape)
    for name, spread in (("old_log_probs", 0.3), ("ref_log_prob", 0.5)):
        values = log_probs.detach().numpy() + rng.normal(0, spread, shape)
        data.batch[name] = torch.tensor(values.astype("f4"))
    data.batch["rollout_is_weights"] = torch.tensor(rng.uniform(0.5, 1.5, shape).astype("f4"))
    return data


def verls_loss(config, data, log_prob, entropy):
    """verl's ppo_loss, in its own functions: the policy term, entropy and KL."""
    mask = data.batch["response_mask"].bool()
    rows = len(mask)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=mask.sum(), global_batch_size=rows,
                                    loss_scale_factor=config.loss_scale_factor)
    double = {name: data.batch[name].double() for name in ("old_log_probs", "advantages", "rollout_is_weights", "ref_log_prob")}
    loss, numbers = real_verl.get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=double["old_log_probs"], log_prob=log_prob, advantages=double["advantages"], response_mask=mask,
        loss_agg_mode=config.loss_agg_mode, config=config, rollout_is_weights=double["rollout_is_weights"])
    mean = lambda values: real_verl.agg_loss(values, mask, config.loss_agg_mode, **config.global_batch_info)  # noqa: E731
    numbers["actor/pg_loss"] = loss.item()
    if config.entropy_coeff:
        loss = loss - config.entropy_coeff * mean(entropy)
    if config.use_kl_loss:
        kl = mean(real_verl.kl_penalty(log_prob, double["ref_log_prob"], config.kl_loss_type))
        numbers["actor/kl_loss"] = kl.item()
        loss = loss + config.kl_loss_coef * kl
    return loss, numbers


def compare(client, model, config, data, log_prob, entropy):
    loss, numbers = verls_loss(config, data, log_prob, entropy)
    model.zero_grad()
    loss.backward(retain_graph=True)
    grad_norm = sum(g.square().sum() for g in model.gradients().values()).sqrt().item()
    update = real_verl.update_of(config)
    arguments = {**update.arguments(), "adam": dataclasses.replace(update.adam, learning_rate=0.0)}
    result = client.update_actor(verl.groups_from_dataproto(data, update), **arguments)
    ours = verl.metrics(result)
    # float64 both; old, reference and weights are the same float32 numbers. The sums run in another order.
    assert ours["actor/loss"] == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    assert ours["actor/grad_norm"] == pytest.approx(grad_norm, rel=1e-8)
    for name, value in numbers.items():
        # The clip fraction and ppo_kl are means of float32 in verl.
        assert ours.get(name, 0.0) == pytest.approx(value, rel=1e-5, abs=1e-6), name
    return result.metrics


@pytest.fixture(scope="module")
def now(client, model):
    data = padded_batch()
    log_prob, entropy = padded(model, data)
    return with_log_probs(data, log_prob, SEED), log_prob, entropy


@pytest.mark.parametrize("mode, agg", list(itertools.product(MODES, AGG_MODES)))
def test_g17_each_of_20_losses_is_verls_own(client, model, now, mode, agg):
    data, log_prob, entropy = now
    config = real_verl.actor_config(mode, loss_agg_mode=agg, loss_scale_factor=11 if agg.endswith("norm") else None,
                                    clip_ratio_low=0.1, clip_ratio_high=0.15)
    ours = compare(client, model, config, data, log_prob, entropy)
    if mode != "gpg":
        assert 0 < ours["actor/pg_clipfrac"] < 1  # both sides of the clip were compared


@pytest.mark.parametrize("kind", ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k3+"])
def test_g17_the_kl_term_and_the_entropy_are_verls_own(client, model, now, kind):
    data, log_prob, entropy = now
    config = real_verl.actor_config("vanilla", use_kl_loss=True, kl_loss_type=kind, kl_loss_coef=0.125, entropy_coeff=0.03125)
    compare(client, model, config, data, log_prob, entropy)


def test_g17_a_wrong_aggregation_is_noticed(client, model, now):
    """The negative control of compare."""
    data, log_prob, entropy = now
    config = real_verl.actor_config("vanilla", loss_agg_mode="token-mean")
    loss, _ = verls_loss(config, data, log_prob, entropy)
    update = real_verl.update_of(real_verl.actor_config("vanilla", loss_agg_mode="seq-mean-token-mean"))
    result = client.update_actor(verl.groups_from_dataproto(data, update), update.loss, stemma.adamw(0.0, weight_decay=0.0))
    assert result.metrics["actor/loss"] != pytest.approx(loss.item(), rel=1e-4)


def test_g17_random_configurations_and_batches(client, model):
    print("seed", SEED)
    rng = random.Random(SEED)
    for case in range(6):
        data = padded_batch(seed=rng.randrange(10**6), prompts=rng.randrange(1, 5), n=rng.randrange(1, 5))
        temperature = rng.choice([1.0, 0.75, 1.25])
        data.meta_info["temperature"] = temperature
        log_prob, entropy = padded(model, data, temperature)
        data = with_log_probs(data, log_prob, rng.randrange(10**6))
        agg = rng.choice(AGG_MODES)
        config = real_verl.actor_config(
            rng.choice(MODES), loss_agg_mode=agg, loss_scale_factor=rng.randrange(3, 20), clip_ratio_low=rng.uniform(0, 0.3),
            clip_ratio_high=rng.uniform(0, 0.3), clip_ratio_c=rng.uniform(1.1, 4), use_kl_loss=rng.random() < 0.5,
            kl_loss_type=rng.choice(verl_kl_types()), kl_loss_coef=rng.uniform(0, 0.3), entropy_coeff=rng.choice([0, 0.01]))
        print(case, config.policy_loss.loss_mode, agg, len(data))
        loss, _ = verls_loss(config, data, log_prob, entropy)
        update = real_verl.update_of(config, temperature=temperature)
        result = client.update_actor(verl.groups_from_dataproto(data, update), update.loss, stemma.adamw(0.0, weight_decay=0.0))
        assert result.metrics["actor/loss"] == pytest.approx(loss.item(), rel=1e-9, abs=1e-11)


def verl_kl_types():
    return ["kl", "abs", "mse", "low_var_kl"]


# Batches.

def test_g17_padding_is_stripped_and_rows_of_one_prompt_are_one_group():
    data = padded_batch()
    update = real_verl.update_of(real_verl.actor_config())
    groups = verl.groups_from_dataproto(data, update)
    assert sorted(g.uid for g in groups) == ["uid-0", "uid-1", "uid-2"] and all(len(g.rollouts) == N for g in groups)
    assert all(g.stat_group is None for g in groups)
    for group in groups:
        for rollout in group.rollouts:
            row = int(rollout.rollout_id)
            assert data.non_tensor_batch["uid"][row] == group.uid
            attention = data.batch["attention_mask"][row].bool()
            assert list(group.prompt) == data.batch["prompts"][row][attention[:PROMPT_WIDTH]].tolist()
            assert list(rollout.tokens) == data.batch["responses"][row][attention[PROMPT_WIDTH:]].tolist()
            mask = data.batch["response_mask"][row][:len(rollout.tokens)].bool()
            assert (rollout.mask is None and mask.all()) or list(rollout.mask) == mask.tolist()
            if mask.any():
                assert rollout.advantage == data.batch["advantages"][row][:len(rollout.tokens)][mask][0]


def test_g17_several_prompts_under_one_uid_share_a_stat_group(client):
    data = padded_batch(prompts=4, several_prompts=True)
    update = real_verl.update_of(real_verl.actor_config("gpg"))
    groups = verl.groups_from_dataproto(data, update)
    assert sorted((g.uid, g.stat_group) for g in groups) == [
        ("uid-0/prompt-0", "uid-0"), ("uid-0/prompt-1", "uid-0"), ("uid-1/prompt-0", "uid-1"), ("uid-1/prompt-1", "uid-1")]
    assert client.update_actor(groups, **update.arguments()).steps[0].outcome == "APPLIED"


def test_g17_log_probs_come_back_in_the_shape_of_the_batch(client):
    data = padded_batch()
    groups = verl.groups_from_dataproto(data, real_verl.update_of(real_verl.actor_config()))
    log_probs = client.log_probs(groups)
    out = verl.padded_log_probs(log_probs, data)
    attention = data.batch["attention_mask"][:, PROMPT_WIDTH:].numpy()
    assert out.shape == attention.shape and ((out != 0) == (attention != 0)).all()
    assert out[3, 1] == numpy.float32(log_probs["3"].log_probs[1])


def test_g17_advantages_of_each_token_are_sent_where_they_differ():
    data = padded_batch()
    data.batch["advantages"] = torch.arange(len(data) * RESPONSE_WIDTH).reshape(len(data), -1) / 8
    groups = verl.groups_from_dataproto(data, real_verl.update_of(real_verl.actor_config()))
    for rollout in (r for g in groups for r in g.rollouts):
        row, length = int(rollout.rollout_id), len(rollout.tokens)
        if data.batch["response_mask"][row].sum() > 1:
            assert list(rollout.advantage) == data.batch["advantages"][row][:length].tolist()


def spoiled(change, **fields):
    data = padded_batch()
    change(data)
    return lambda: verl.groups_from_dataproto(data, real_verl.update_of(real_verl.actor_config(**fields)))


@pytest.mark.parametrize("build, says", [
    (spoiled(lambda d: d.batch.pop("advantages")), "lacks advantages"),
    (spoiled(lambda d: d.non_tensor_batch.pop("uid")), "lacks uid"),
    (spoiled(lambda d: d.non_tensor_batch.update(multi_modal_inputs=numpy.array([{}] * 12))), "trains on text"),
    (spoiled(lambda d: d.meta_info.update(temperature=0.5)), "temperature 0.5"),
    (spoiled(lambda d: d.batch["attention_mask"].__setitem__((0, PROMPT_WIDTH - 1), 0)), "padded on the left"),
    (spoiled(lambda d: d.batch["attention_mask"].__setitem__((0, PROMPT_WIDTH), 0)), "padded on the right"),
    (spoiled(lambda d: d.batch["response_mask"].fill_(1)), "response_mask is 1 where"),
    (spoiled(lambda d: None, use_kl_loss=True), "lacks ref_log_prob"),
    (spoiled(lambda d: None, ppo_mini_batch_size=2, rollout_n=8), "ppo_mini_batch_size to the number of groups"),
])
def test_g17_a_batch_that_would_mean_something_else_is_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()


# Configurations.

def test_g17_every_key_of_verls_actor_configuration_is_in_one_table():
    ours = {*verl.TAKEN, *verl.DROPPED, *verl.REFUSED}
    theirs = real_verl.actor_keys()
    in_sections = {key for key in theirs if key.startswith(("qat.", "router_replay."))}
    assert theirs - in_sections <= ours, sorted(theirs - in_sections - ours)
    assert len(ours) == len(verl.TAKEN) + len(verl.DROPPED) + len(verl.REFUSED)


def test_g17_every_key_of_verls_own_yaml_is_known():
    """actor.yaml and dp_actor.yaml of the wheel, with the interpolations that the update reads filled in."""
    import verl as installed

    folder = pathlib.Path(installed.__file__).parent / "trainer" / "config"
    config = {}
    for name in ("actor/actor.yaml", "actor/dp_actor.yaml"):
        config.update(yaml.safe_load((folder / name).read_text()))
    config["optim"] = yaml.safe_load((folder / "optim/fsdp.yaml").read_text())
    config["rollout_n"] = 4
    config["optim"]["lr"] = 1e-6  # YAML reads 1e-6 as text, OmegaConf as a number
    del config["defaults"]
    update = real_verl.update_of(config)
    assert update.loss == stemma.LossConfig("vanilla", clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0)
    assert (update.mini_batch, update.epochs, update.shuffle, update.rollout_n) == (256, 1, False, 4)
    assert update.adam == stemma.AdamW(1e-6, 0.9, 0.999, 1e-8, 0.01, "ALL", 1.0)
    assert "strategy" in update.dropped and "fsdp_config" in update.dropped


def test_g17_a_key_is_taken_or_dropped_or_refused_by_name():
    """Each taken key changes what comes out, each dropped one does not: over all keys that verl has."""
    base = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 8, "use_kl_loss": True, "rollout_n": 4,
            "shuffle": True, "ppo_mini_batch_size": 4,
            "optim": {"lr_scheduler_type": "cosine", "total_training_steps": 100, "lr_warmup_steps_ratio": 0.25}}
    other = {"clip_ratio": 0.3, "clip_ratio_low": 0.3, "clip_ratio_high": 0.3, "clip_ratio_c": 5.0, "policy_loss.loss_mode": "gspo",
             "loss_agg_mode": "token-sum", "loss_scale_factor": 9, "use_kl_loss": False, "kl_loss_coef": 0.5, "kl_loss_type": "k1",
             "entropy_coeff": 0.5, "calculate_entropy": True, "ppo_mini_batch_size": 8, "ppo_epochs": 2, "shuffle": False,
             "data_loader_seed": 7, "rollout_n": 8, "optim.lr": 0.5, "optim.betas": [0.8, 0.9], "optim.weight_decay": 0.5,
             "optim.clip_grad": 0.5, "optim.grad_clip": 0.5, "optim.lr_scheduler_type": "constant", "optim.warmup_style": "constant",
             "optim.lr_warmup_steps": 50, "optim.lr_warmup_steps_ratio": 0.5, "optim.total_training_steps": 50,
             "optim.min_lr_ratio": 0.5, "optim.num_cycles": 1.5, "optim.zero_indexed_step": False,
             "optim.override_optimizer_config": {"eps": 1e-4}}

    def with_key(key, value):
        section, _, inner = key.rpartition(".")
        return {**base, section: {**base.get(section, {}), inner: value}} if section else {**base, key: value}

    def outcome(config):
        update = real_verl.update_of(config)
        return {**vars(update), "dropped": None, "rates": [update.learning_rate(s) for s in (0, 20, 60, 90)]}

    plain = outcome(base)
    for key in set(verl.TAKEN) - {"optim.optimizer", "optim.optimizer_impl"}:
        assert outcome(with_key(key, other[key])) != plain, key
    for key in verl.DROPPED:
        assert outcome(with_key(key, "anything")) == plain and key in real_verl.update_of(with_key(key, "anything")).dropped
    for key in verl.REFUSED:
        assert outcome(with_key(key, False)) == plain
        with pytest.raises(ValueError, match=f"actor.{key} is True"):
            real_verl.update_of(with_key(key, True))


@pytest.mark.parametrize("fields, says", [
    ({"clip_rato": 0.2}, "actor.clip_rato is not known"),
    ({"policy_loss": {"loss_mode": "dppo_tv"}}, "actor.policy_loss.loss_mode is 'dppo_tv'"),
    ({"policy_loss": {"mode": "x"}}, "actor.policy_loss.mode is not known"),
    ({"loss_agg_mode": "mean"}, "actor.loss_agg_mode is 'mean'"),
    ({"loss_agg_mode": "seq-mean-token-sum-norm"}, "data.max_response_length of the configuration"),
    ({"use_kl_loss": True, "kl_loss_type": "full"}, "actor.kl_loss_type is 'full'"),
    ({"optim": {"optimizer": "Muon"}}, "actor.optim.optimizer is 'Muon'"),
    ({"optim": {"optimizer": "AdamW8bit", "optimizer_impl": "torchao.optim"}}, "actor.optim.optimizer is 'AdamW8bit'"),
    ({"optim": {"optimizer_impl": "torchao.optim"}}, "actor.optim.optimizer_impl is 'torchao.optim'"),
    ({"optim": {"override_optimizer_config": {"amsgrad": True}}}, "has amsgrad"),
    ({"optim": {"lr_scheduler_type": "wsd"}}, "lr_scheduler_type is 'wsd'"),
    ({"optim": {"lr_scheduler_type": "cosine"}}, "total_training_steps is -1"),
])
def test_g17_what_stemma_does_not_have_is_refused_by_name(fields, says):
    with pytest.raises(ValueError) as error:
        real_verl.update_of(fields)
    assert says in str(error.value)


def test_g17_the_other_loss_modes_of_verl_are_refused():
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    for mode in set(POLICY_LOSS_REGISTRY) - set(MODES):
        with pytest.raises(ValueError, match=mode):
            real_verl.update_of({"policy_loss": {"loss_mode": mode}})
    assert set(MODES) <= set(POLICY_LOSS_REGISTRY)


@pytest.mark.parametrize("kind, fields", [
    ("constant", {"lr_warmup_steps": 5}), ("constant", {"lr_warmup_steps_ratio": 0.2}), ("constant", {}),
    ("cosine", {"lr_warmup_steps": 4, "min_lr_ratio": 0.1}), ("cosine", {"num_cycles": 1.5}),
    ("cosine", {"zero_indexed_step": False, "lr_warmup_steps": 3})])
def test_g17_learning_rates_are_those_of_verls_schedulers(kind, fields):
    optim = {"lr": 2e-3, "lr_scheduler_type": kind, "total_training_steps": 30, **fields}
    update = real_verl.update_of({"optim": optim})
    parameter = torch.nn.Parameter(torch.zeros(1))
    torch_optimizer = torch.optim.SGD([parameter], lr=optim["lr"])
    warmup = optim.get("lr_warmup_steps") or int(optim.get("lr_warmup_steps_ratio", 0) * 30)
    make = real_verl.get_constant_schedule_with_warmup if kind == "constant" else real_verl.get_cosine_schedule_with_warmup
    more = {} if kind == "constant" else {"num_training_steps": 30, "min_lr_ratio": optim.get("min_lr_ratio", 0.0),
                                          "num_cycles": optim.get("num_cycles", 0.5),
                                          "zero_indexed_step": optim.get("zero_indexed_step", True)}
    scheduler = make(torch_optimizer, num_warmup_steps=warmup, **more)
    for step in range(30):
        assert update.learning_rate(step) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12, abs=1e-18), step
        torch_optimizer.step()
        scheduler.step()


def test_g17_metrics_have_verls_names(client):
    data = padded_batch()
    update = real_verl.update_of(real_verl.actor_config(entropy_coeff=0.01))
    result = client.update_actor(verl.groups_from_dataproto(data, update), **update.arguments())
    metrics = verl.metrics(result, peak_tflops=2.0)
    assert {"actor/pg_loss", "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl", "actor/grad_norm", "actor/lr",
            "actor/entropy_loss", "perf/mfu/actor"} <= set(metrics)
    # verl's trainer gives these to the whole RL step.
    assert not {"perf/throughput", "perf/time_per_step", "perf/total_num_tokens"} & set(metrics)
    seconds = metrics["perf/actor/time_per_step"]
    assert metrics["perf/mfu/actor"] == pytest.approx(metrics["perf/actor/flops_dense"] / seconds / 2e12)
    assert "perf/mfu/actor" not in verl.metrics(result)
    for peak in (0, -1, "989", math.nan, math.inf, True):
        with pytest.raises(ValueError, match=f"^peak_tflops is {peak!r}: pass a number above 0"):
            verl.metrics(result, peak_tflops=peak)


def test_g17_the_page_has_every_key_with_its_reason():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "verl.md").read_text()
    for table in (verl.TAKEN, verl.DROPPED, verl.REFUSED, verl.REFUSED_OUTSIDE):
        for key, why in table.items():
            assert f"| `{key}` | {why} |" in page or "own" in why and f"`{key}`" in page, key
