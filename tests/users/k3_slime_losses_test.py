"""K3: the losses that docs/frameworks.md names for slime are slime's, in float64, with their gradient norms; what the page calls
another loss is another."""

import dataclasses
import itertools
import math
import types
from typing import Any, List, Optional

import pytest
import torch
from framework_rows import KL_TYPES, SAME, clipped, distance, k3, page, rows_of, running, token_mean


@pytest.fixture(scope="module")
def bench():
    with running() as made:
        yield made


# Its loss is a sum of means over a rollout's unmasked tokens, divided by the number of rollouts.

@dataclasses.dataclass
class Sample:
    tokens: List[int]
    response_length: int
    reward: Any
    loss_mask: List[int]
    group_index: int
    rollout_id: Optional[int] = None
    remove_sample: bool = False


def slime_args(temperature=1.0):
    return types.SimpleNamespace(rollout_temperature=temperature)


def samples_of(rows, rollout_ids=None):
    return [Sample(row.prompt + row.tokens, row.length, row.reward, row.mask.int().tolist(), row.group, rollout_id)
            for row, rollout_id in zip(rows, rollout_ids or [None] * len(rows))]


def normalized(rewards):
    rewards = torch.tensor(rewards, dtype=torch.float64)
    return ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).tolist()


def by_group(rows):
    return [advantage for _, group in itertools.groupby(rows, lambda row: row.group)
            for advantage in normalized([row.reward for row in group])]


def slimes_loss(rows, advantages, rollout_ids=None, penalty=lambda row: 0.0):
    rollout_ids = rollout_ids or list(range(len(rows)))
    counts = {name: sum(row.mask.sum() for row, other in zip(rows, rollout_ids) if other == name) for name in rollout_ids}
    total = 0.0
    for row, advantage, name in zip(rows, advantages, rollout_ids):
        row.advantage = torch.tensor(advantage, dtype=torch.float64)
        total = total + ((clipped(row, row.now - row.now.detach()) + penalty(row)) * row.mask).sum() / counts[name].clamp(min=1)
    return total / len(counts)


def test_k3_slime_divides_its_logits_by_the_temperature(bench):
    rows = rows_of(bench, temperature=0.6)
    theirs = slimes_loss(rows, by_group(rows))
    assert distance(bench, theirs, page(bench, "def from_slime", samples=samples_of(rows), args=slime_args(0.6))) < SAME
    assert distance(bench, theirs, page(bench, "def from_slime", samples=samples_of(rows), args=slime_args())) > 0.1, "the control"


def test_k3_slimes_parts_of_a_rollout_share_their_divisor_and_count_once(bench):
    rows = rows_of(bench, sizes=(4, 4), whole=False)
    parts = [index // 2 for index in range(len(rows))]
    theirs = slimes_loss(rows, by_group(rows), parts)
    scope = dict(samples=samples_of(rows, parts), train_data={"rewards": by_group(rows)}, args=slime_args())
    assert distance(bench, theirs, page(bench, "def from_slime", "def with_advantages", **scope)) < SAME
    alone = dict(scope, samples=samples_of(rows))
    assert distance(bench, theirs, page(bench, "def from_slime", "def with_advantages", **alone)) > 0.01, "the control"


def test_k3_slimes_groups_of_many_sizes_have_one_baseline(bench):
    rows = rows_of(bench, sizes=(2, 3, 4))
    advantages = normalized([row.reward for row in rows])
    theirs = slimes_loss(rows, advantages)
    scope = dict(samples=samples_of(rows), args=slime_args())
    made = page(bench, "def from_slime", "def with_advantages", train_data={"rewards": advantages}, **scope)
    assert distance(bench, theirs, made) < SAME
    assert distance(bench, theirs, page(bench, "def from_slime", **scope)) > 0.01, "the control: rewards have a baseline for each group"


def slimes_kl(made, rows):
    references = {tuple(row.tokens): row.ref for row in rows}
    for group in made.groups:
        for rollout in group.rollouts:
            rollout.ref_log_prob = references[tuple(rollout.tokens)]
    return made


@pytest.mark.parametrize("kl, ours, penalty", [
    ("k1", "k1", lambda row: row.now - row.ref),
    ("k2", "k2", lambda row: (row.now - row.ref).square() / 2),
    ("k3", "k3", k3),
    ("k3, unbiased", "k3+", lambda row: (row.now - row.now.detach()).exp() * k3(row)),
])
def test_k3_slimes_kl_terms_have_its_names(bench, kl, ours, penalty):
    rows = rows_of(bench)
    theirs = slimes_loss(rows, by_group(rows), penalty=lambda row: 0.5 * penalty(row))
    made = slimes_kl(page(bench, "def from_slime", samples=samples_of(rows), args=slime_args()), rows)
    found = {name for name in KL_TYPES if distance(bench, theirs, made, kl_loss_coef=0.5, kl_loss_type=name) < SAME}
    assert found == ({ours, "k2+"} if ours == "k2" else {ours}), "k2 and k2+ are one function"


def test_k3_slime_caps_no_k3(bench):
    rows = rows_of(bench, spread=3.0)
    made = slimes_kl(page(bench, "def from_slime", samples=samples_of(rows), args=slime_args()), rows)
    for cap, same in ((math.inf, False), (10.0, True)):  # with the cap it is slime's low_var_kl
        theirs = slimes_loss(rows, by_group(rows), penalty=lambda row: 0.5 * k3(row).clamp(max=cap))  # noqa: B023
        assert (distance(bench, theirs, made, kl_loss_coef=0.5, kl_loss_type="low_var_kl") < SAME) is same


def test_k3_a_sample_without_tokens_is_one_in_slimes_per_token_divisor(bench):
    rows = rows_of(bench, sizes=(4, 4), whole=False)
    tokens = [row.mask.sum().item() for row in rows]
    for row, advantage in zip(rows, by_group(rows)):
        row.advantage = torch.tensor(advantage, dtype=torch.float64)
    ours = token_mean(rows, [clipped(row, row.now - row.now.detach()) for row in rows])
    made = page(bench, "def from_slime", samples=samples_of(rows), args=slime_args())
    assert distance(bench, ours, made, loss_agg_mode="token-mean") < SAME
    theirs = ours * sum(tokens) / sum(max(count, 1) for count in tokens)
    assert distance(bench, theirs, made, loss_agg_mode="token-mean") > 0.01
