"""K2: the losses that docs/frameworks.md and docs/verl.md name for OpenRLHF, NeMo-RL and TRL are theirs, in float64, with their
gradient norms; what the pages call another loss is another. Formulas are the frameworks', of the versions that are named."""

import dataclasses
import math
import pathlib
import re
import types

import pytest
import stemma
import torch
from framework_rows import (KL_TYPES, OTHER, SAME, STILL, clipped, distance, distances, k3, of_sequence, page, rows_of, running,
                            sequence_mean, token_mean)
from stemma import verl

LOSSES = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "losses.md").read_text()


@pytest.fixture(scope="module")
def bench():
    with running() as made:
        yield made


# OpenRLHF 0.11.2.

def experience_of(rows, *, base=True, old="old"):
    """Padded on the right; what has the mask's shape begins with the second token."""
    width = max(len(row.prompt) + row.length for row in rows) + 1
    after = lambda row, values: torch.cat([torch.zeros(len(row.prompt) - 1), values.double(),  # noqa: E731
                                           torch.zeros(width - len(row.prompt) - row.length)])
    whole = lambda row, values, pad: torch.tensor(values + [pad] * (width - len(values)))  # noqa: E731
    stacked = lambda name: torch.stack([after(row, getattr(row, name)) for row in rows])  # noqa: E731
    return types.SimpleNamespace(
        sequences=torch.stack([whole(row, row.prompt + row.tokens, 47) for row in rows]),
        attention_mask=torch.stack([whole(row, [1] * (len(row.prompt) + row.length), 0) for row in rows]),
        action_mask=stacked("mask").bool(), advantages=stacked("advantage"), action_log_probs=stacked(old),
        base_action_log_probs=stacked("ref") if base else None)


def openrlhf_args(temperature=1.0, estimator="k3"):
    kl = types.SimpleNamespace(init_coef=0.5, estimator=estimator)
    return types.SimpleNamespace(rollout=types.SimpleNamespace(temperature=temperature), algo=types.SimpleNamespace(kl=kl))


def openrlhf(bench, rows, args=None, **options):
    return page(bench, "def from_openrlhf", experience=experience_of(rows, **options), args=args or openrlhf_args())


def ppo(rows, mean=token_mean):
    return mean(rows, [clipped(row, row.now - row.old) for row in rows])


def test_k2_openrlhfs_default_has_its_kl_in_the_advantages(bench):
    rows = rows_of(bench, temperature=0.6, per_token=True)
    made = openrlhf(bench, rows, openrlhf_args(0.6), base=False)
    assert made.loss.kl_loss_coef is None and distance(bench, ppo(rows), made) < SAME
    assert distance(bench, ppo(rows), made, temperature=1.0) > 0.1, "the control"


def test_k2_openrlhfs_divisors_leave_out_rows_that_are_masked_in_whole(bench):
    rows = rows_of(bench, whole=False)
    kept = [row for row in rows if row.mask.any()]
    assert len(kept) < len(rows)
    made = openrlhf(bench, rows, base=False)
    assert distance(bench, ppo(kept, sequence_mean), made, loss_agg_mode="seq-mean-token-mean") < SAME
    assert distance(bench, ppo(kept), made) < SAME


def test_k2_openrlhfs_kl_is_a_token_mean_whatever_the_losss_is(bench):
    rows = rows_of(bench)
    made = openrlhf(bench, rows)
    penalty = 0.5 * token_mean(rows, [k3(row) for row in rows])
    assert made.loss.kl_loss_type == "k3" and distance(bench, ppo(rows) + penalty, made) < SAME
    assert distance(bench, ppo(rows, sequence_mean) + penalty, made, loss_agg_mode="seq-mean-token-mean") > OTHER
    entropy = 0.1 * token_mean(rows, [row.entropy for row in rows])
    assert distance(bench, ppo(rows) + penalty - entropy, made, entropy_coeff=0.1) < SAME
    both = dict(loss_agg_mode="seq-mean-token-mean", kl_loss_coef=0.0, entropy_coeff=0.1)
    assert distance(bench, ppo(rows, sequence_mean) - entropy, made, **both) > OTHER


@pytest.mark.parametrize("on_policy", [True, False])
def test_k2_openrlhfs_unbiased_gradient_is_that_of_the_plus_on_policy(bench, on_policy):
    rows = rows_of(bench, on_policy=on_policy, seed=1)
    straight = [((row.now - row.old).exp().clamp(max=10) * (row.now - row.ref)).detach() * row.now for row in rows]
    values = [k3(row).detach() + term - term.detach() for row, term in zip(rows, straight)]
    theirs = ppo(rows) + 0.5 * token_mean(rows, values)
    made = openrlhf(bench, rows)
    assert (distance(bench, theirs, made, kl_loss_type="k3+") < SAME) is on_policy
    assert distance(bench, theirs, made) > OTHER, "the control"


@pytest.mark.parametrize("kl, term", [("k1", lambda x: -x), ("k2", lambda x: x.square() / 2)])
def test_k2_openrlhf_clamps_k1_and_k2_and_stemma_does_not(bench, kl, term):
    rows = rows_of(bench)
    rows[0].ref = rows[0].now.detach().float().double() - 12.0
    made = openrlhf(bench, rows, openrlhf_args(estimator=kl))
    for cap, same in ((math.inf, True), (10.0, False)):
        values = [term(row.ref - row.now).clamp(-cap, cap) for row in rows]
        assert (distance(bench, ppo(rows) + 0.5 * token_mean(rows, values), made) < SAME) is same


def test_k2_openrlhfs_gspo_with_is_correction_takes_its_ratio_against_the_engine(bench):
    rows = rows_of(bench, spread=0.05)
    theirs = sequence_mean(rows, [clipped(row, of_sequence(row, row.now - row.engine)) for row in rows])
    gspo = dict(loss_mode="gspo", loss_agg_mode="seq-mean-token-mean")
    assert distance(bench, theirs, openrlhf(bench, rows, base=False, old="engine"), **gspo) < SAME
    made = openrlhf(bench, rows, base=False)
    rollouts = [rollout for group in made.groups for rollout in group.rollouts]
    for row, rollout in zip(rows, rollouts):
        rollout.rollout_is_weights = (row.old - row.engine).exp()
    assert distance(bench, theirs, made, **gspo) > OTHER, "the control: action_log_probs and weights"


def test_k2_gspos_gradient_is_another_where_advantages_vary_by_token(bench):
    for per_token in (False, True):
        rows = rows_of(bench, per_token=per_token)
        theirs = sequence_mean(rows, [clipped(row, of_sequence(row, row.now - row.old)) for row in rows])
        made = openrlhf(bench, rows, base=False)
        loss = dataclasses.replace(made.loss, loss_mode="gspo", loss_agg_mode="seq-mean-token-mean")
        of_loss, of_gradient = distances(bench, theirs, bench.client.update_actor(made.groups, loss, STILL))
        assert of_loss < SAME and (of_gradient > OTHER) is per_token


# NeMo-RL since its pull request 2506: the KL of a token is multiplied by a ratio of 1 that has a gradient.

def nemo_rl(bench, rows, *, temperature=1.0, penalty=0.5, removed=(), without=()):
    width = max(len(row.prompt) + row.length for row in rows) + 1
    placed = lambda row, values: torch.cat([torch.zeros(len(row.prompt)), values.double(),  # noqa: E731
                                            torch.zeros(width - len(row.prompt) - row.length)])
    names = {"token_mask": "mask", "advantages": "advantage", "prev_logprobs": "old", "reference_policy_logprobs": "ref"}
    batch = {key: torch.stack([placed(row, getattr(row, name)) for row in rows]) for key, name in names.items() if key not in without}
    tokens = [row.prompt + row.tokens for row in rows]
    batch["input_ids"] = torch.tensor([row + [47] * (width - len(row)) for row in tokens])
    batch["input_lengths"] = torch.tensor([len(row) for row in tokens])
    batch["sample_mask"] = torch.tensor([float(index not in removed) for index in range(len(rows))])
    config = {"policy": {"generation": {"temperature": temperature}}, "loss_fn": {"reference_policy_kl_penalty": penalty}}
    return page(bench, "def from_nemo_rl", batch=batch, config=config)


def scored(row, value):
    return ((row.now - row.now.detach()).exp() * value).clamp(-10, 10)


def test_k2_nemo_rls_k3_has_the_gradient_of_the_plus(bench):
    rows = rows_of(bench, temperature=0.6, per_token=True)
    theirs = ppo(rows) + 0.5 * token_mean(rows, [scored(row, k3(row)) for row in rows])
    made = nemo_rl(bench, rows, temperature=0.6)
    assert distance(bench, theirs, made) < SAME
    assert distance(bench, theirs, made, kl_loss_type="low_var_kl") > OTHER, "the control: as before 2506"
    before = ppo(rows) + 0.5 * token_mean(rows, [k3(row).clamp(-10, 10) for row in rows])
    assert distance(bench, before, made, kl_loss_type="low_var_kl") < SAME
    assert distance(bench, theirs, made, temperature=1.0) > 0.1, "the control: the temperature"


@pytest.mark.parametrize("value", [lambda row: row.now - row.ref, lambda row: (row.now - row.ref).square() / 2])
def test_k2_nemo_rls_k1_and_k2_fit_no_type(bench, value):
    rows = rows_of(bench)
    theirs = ppo(rows) + 0.5 * token_mean(rows, [scored(row, value(row)) for row in rows])
    made = nemo_rl(bench, rows)
    assert min(distance(bench, theirs, made, kl_loss_type=name) for name in KL_TYPES) > OTHER


def test_k2_nemo_rls_divisors_leave_out_samples_that_are_masked(bench):
    rows = rows_of(bench)
    kept = [row for index, row in enumerate(rows) if index not in (1, 5)]
    made = nemo_rl(bench, rows, removed=(1, 5), without=("reference_policy_logprobs",))
    assert made.loss.kl_loss_coef is None
    assert distance(bench, ppo(kept, sequence_mean), made, loss_agg_mode="seq-mean-token-mean") < SAME
    assert distance(bench, ppo(kept), made) < SAME


def test_k2_nemo_rls_batch_may_lack_old_and_reference(bench):
    rows = rows_of(bench, on_policy=True)
    made = nemo_rl(bench, rows, without=("reference_policy_logprobs", "prev_logprobs"))
    assert made.result.effective["old"]["from"] == "ON_POLICY" and distance(bench, ppo(rows), made) < SAME


# TRL 1.16.

def trl(bench, rows, *, on_policy=False, beta=0.5, corrected=True):
    widest = max(len(row.prompt) for row in rows)
    width = max(row.length for row in rows)
    left = lambda values, pad: [pad] * (widest - len(values)) + values  # noqa: E731
    right = lambda values: torch.cat([values.double(), torch.zeros(width - len(values))])  # noqa: E731
    stacked = lambda name: torch.stack([right(getattr(row, name)) for row in rows])  # noqa: E731
    inputs = {"prompt_ids": torch.tensor([left(row.prompt, 47) for row in rows]),
              "prompt_mask": torch.tensor([left([1] * len(row.prompt), 0) for row in rows]),
              "completion_ids": torch.tensor([row.tokens + [47] * (width - row.length) for row in rows]),
              "completion_mask": torch.stack([right(torch.ones(row.length)) for row in rows]).int(), "tool_mask": stacked("mask").int(),
              "advantages": torch.stack([row.advantage[0] for row in rows])}
    if not on_policy:
        inputs["old_per_token_logps"] = stacked("old")
    if beta:
        inputs["ref_per_token_logps"] = stacked("ref")
    args = types.SimpleNamespace(beta=beta, use_bias_correction_kl=corrected, temperature=0.6)
    return page(bench, "def from_trl", inputs=inputs, args=args)


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("corrected", [True, False])
def test_k2_trls_corrected_kl_is_k3_plus_on_policy(bench, on_policy, corrected):
    rows = rows_of(bench, temperature=0.6, on_policy=on_policy)
    terms = [(row.now - row.old).exp() * k3(row) if corrected else k3(row) for row in rows]
    theirs = ppo(rows) + 0.5 * token_mean(rows, terms)
    made = trl(bench, rows, on_policy=on_policy, corrected=corrected)
    assert made.loss.kl_loss_type == ("k3+" if corrected else "low_var_kl")
    assert (distance(bench, theirs, made) < SAME) is (on_policy or not corrected)
    assert distance(bench, theirs, made, kl_loss_type="low_var_kl" if corrected else "k3+") > OTHER, "the control"


@pytest.mark.parametrize("level, mode, other", [("token", "vanilla", "gspo"), ("sequence", "gspo", "vanilla")])
def test_k2_trls_luspo_is_an_aggregation(bench, level, mode, other):
    rows = rows_of(bench, temperature=0.6)
    ratios = [row.now - row.old if level == "token" else of_sequence(row, row.now - row.old) for row in rows]
    theirs = sum((clipped(row, ratio) * row.mask).sum() for row, ratio in zip(rows, ratios)) / len(rows)
    made = trl(bench, rows, beta=0.0)
    assert distance(bench, theirs, made, loss_mode=mode, loss_agg_mode="seq-mean-token-sum") < SAME
    assert distance(bench, theirs, made, loss_mode=other, loss_agg_mode="seq-mean-token-sum") > OTHER, "the control"


def test_k2_trls_dapo_divides_each_of_several_steps_by_the_mean_of_their_tokens(bench):
    rows = rows_of(bench, temperature=0.6, sizes=(2, 4))
    made = trl(bench, rows, beta=0.0)
    steps = bench.client.update_actor(made.groups, made.loss, STILL, mini_batch=1).steps
    mean = sum(row.mask.sum() for row in rows) / len(steps)
    for group, step in enumerate(steps):
        own = [row for row in rows if row.group == group]
        theirs = ppo(own) * sum(row.mask.sum() for row in own) / mean
        assert max(distances(bench, ppo(own), step)) < SAME and max(distances(bench, theirs, step)) > OTHER


def test_k2_ratios_far_off_are_clamped_as_openrlhfs_are_and_trls_are_not(bench):
    rows = rows_of(bench, temperature=0.6)
    far = next(row for row in rows if row.advantage[0] < 0)
    far.old = (far.now.detach() - 22).float().double()
    made = trl(bench, rows, beta=0.0)
    assert distance(bench, token_mean(rows, [clipped(row, (row.now - row.old).clamp(-20, 20)) for row in rows]), made) < SAME
    assert distance(bench, ppo(rows), made) > OTHER

def test_k2_trls_cispo_of_its_default_bound_is_refused(bench):
    made = trl(bench, rows_of(bench), beta=0.0)
    loss = dataclasses.replace(made.loss, loss_mode="cispo", clip_ratio_low=1, clip_ratio_high=0.2 - 1)
    with pytest.raises(stemma.StemmaError, match="clip_ratio_high"):
        bench.client.update_actor(made.groups, loss, STILL)


# verl.

@pytest.mark.parametrize("name, fields", [("GRPO", {}), ("DAPO", {"clip_ratio_high": 0.28})])
def test_k2_presets_as_verl_has_them_are_what_verls_configuration_gives(name, fields):
    """g17_verl_test compares that with verl's functions."""
    [preset] = re.findall(rf"\| {name} as verl has it \| `(.*?)` \|", LOSSES)
    loss = eval(preset, {"stemma": stemma})
    update = verl.loss_from_config({"actor_rollout_ref": {"actor": fields}, "algorithm": {}})
    assert dataclasses.replace(loss, normalize_advantage_std=None) == update.loss
