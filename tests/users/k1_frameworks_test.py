"""K1: docs/frameworks.md runs as it stands, and what it makes of the batches of slime, OpenRLHF, NeMo-RL and TRL is what they say."""

import dataclasses
import enum
import math
import pathlib
import re
import types
from typing import Any, List, Optional

import pytest
import stemma
import torch
from e2e.errors.server import Cluster
from oracle import hf64
from stemma._update import update_parts

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "frameworks.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
KL = stemma.grpo(normalize_advantage_std=None, kl_loss_coef=1e-3, kl_loss_type="low_var_kl")
PAD = 47
_KL_ARGS = types.SimpleNamespace(init_coef=1e-3, estimator="k3")
ARGS = types.SimpleNamespace(  # what the snippets read of the trainers' arguments
    rollout_temperature=1.0, temperature=1.0, beta=0.0, use_bias_correction_kl=True,
    rollout=types.SimpleNamespace(temperature=1.0), algo=types.SimpleNamespace(kl=_KL_ARGS))
CONFIG = {"policy": {"generation": {"temperature": 1.0}}, "loss_fn": {"reference_policy_kl_penalty": 1e-3}}


def block_with(text):
    [found] = [block for block in BLOCKS if text in block]
    return found


@pytest.fixture(scope="module")
def client():
    with Cluster(flags=("--dtype", "fp64")) as cluster, stemma.Client(cluster.address) as made:
        yield made


@dataclasses.dataclass
class Row:
    """One response of the batch that every framework is to have; numbers are exact in float32."""

    prompt: List[int]
    tokens: List[int]
    mask: List[int]
    reward: float
    old: List[float]
    ref: List[float]
    cut: bool = False

    @property
    def advantages(self):
        return [self.reward - 0.25] * len(self.tokens)


ROWS = [Row([1, 2, 3], [4, 5, 6], [1, 0, 1], 1.0, [-1.0, 0.0, -0.5], [-1.5, 0.0, -0.25]),
        Row([1, 2, 3], [7, 8], [1, 1], 0.0, [-2.0, -1.0], [-2.0, -2.0], cut=True),
        Row([9, 8, 7, 6], [5], [1], 0.5, [-3.0], [-3.5]),
        Row([9, 8, 7, 6], [4, 4, 4, 4], [1, 1, 1, 1], 0.5, [-1.0] * 4, [-0.5] * 4)]


def groups_of(rollout, rows=None, named=False):
    """What a snippet is to make of the rows."""
    prompts = {}
    for row in rows or ROWS:
        prompts.setdefault(tuple(row.prompt), []).append(rollout(row))
    return [stemma.Group(f"prompt-{i}", list(prompt), rollouts, str(i) if named else None)
            for i, (prompt, rollouts) in enumerate(prompts.items())]


def messages(groups, loss, **options):
    return update_parts(groups, loss, stemma.adamw(1e-6), "auto", "auto", **options)


def assert_same(made, expected, loss):
    assert [part.SerializeToString() for part in messages(made, loss)] == [part.SerializeToString() for part in messages(expected, loss)]


def run(client, *blocks, **scope):
    scope = {"client": client, "args": ARGS, "config": CONFIG, **scope}
    for block in (block_with("def by_prompt"), *blocks):
        exec(compile(block, "docs/frameworks.md", "exec"), scope)
    assert [step.outcome for step in scope["result"].steps] == ["APPLIED"]
    return scope


# As the frameworks lay a batch out.

@dataclasses.dataclass
class Sample:
    """slime's, as far as it is read."""

    class Status(enum.Enum):
        COMPLETED = "completed"
        TRUNCATED = "truncated"

    tokens: List[int]
    response_length: int
    reward: Any
    loss_mask: Optional[List[int]] = None
    rollout_log_probs: Optional[List[float]] = None
    remove_sample: bool = False
    group_index: Optional[int] = 0
    rollout_id: Optional[int] = None
    status: Status = Status.COMPLETED


def samples():
    return [Sample(row.prompt + row.tokens, len(row.tokens), row.reward, row.mask, row.old, group_index=index // 2,
                   status=Sample.Status.TRUNCATED if row.cut else Sample.Status.COMPLETED)
            for index, row in enumerate(ROWS)]


def rolled_out(row):
    return stemma.Rollout(row.tokens, reward=row.reward, mask=row.mask)


def padded(rows, value=0):
    width = max(map(len, rows)) + 1  # one more, as a batch that is padded to a multiple has
    return torch.tensor([list(row) + [value] * (width - len(row)) for row in rows])


def beside_prompts(field, skip=0):
    return padded([([0.0] * len(row.prompt) + list(getattr(row, field)))[skip:] for row in ROWS])


def trained(row):
    return stemma.Rollout(row.tokens, mask=row.mask, advantage=row.advantages, old_log_probs=row.old, ref_log_prob=row.ref)


def test_k1_slimes_samples_are_rollouts(client):
    made = run(client, block_with("def from_slime"), samples=samples())["groups"]
    assert_same(made, groups_of(rolled_out, named=True), stemma.grpo())
    removed = samples()
    removed[0].remove_sample, removed[1].loss_mask = True, None
    made = run(client, block_with("def from_slime"), samples=removed)["groups"]
    assert [rollout.mask for rollout in made[0].rollouts] == [[0, 0, 0], None]


def test_k1_each_group_of_slime_has_its_own_baseline_whatever_its_prompt(client):
    twice = samples()[:2] + [dataclasses.replace(sample, group_index=7) for sample in samples()[:2]]
    made = run(client, block_with("def from_slime"), samples=twice)["groups"]
    assert [(group.prompt, group.stat_group, len(group.rollouts)) for group in made] == [([1, 2, 3], "0", 2), ([1, 2, 3], "7", 2)]
    nameless = [dataclasses.replace(sample, group_index=None) for sample in samples()]
    made = run(client, block_with("def from_slime"), samples=nameless)["groups"]
    assert [(group.stat_group, len(group.rollouts)) for group in made] == [(None, 2), (None, 2)]


def uneven_samples():
    """Two groups of one prompt with responses of many lengths: one empty, one masked in part, one removed."""
    prompt, engine = [1, 2, 3], [-3.5, -4.5, -3.0, -4.0, -2.5]
    made = [(0, [4, 5, 6], 1.0, [1, 0, 1]), (0, [7], 0.0, None), (0, [8, 4, 8, 4, 8], 0.5, None), (1, [9, 9], 0.0, [1, 1]),
            (1, [], 1.0, []), (1, [5, 5, 6, 6], 0.25, None), (1, [6, 7], 1.0, None)]
    out = [Sample(prompt + tokens, len(tokens), reward, mask, engine[:len(tokens)], group_index=group)
           for group, tokens, reward, mask in made]
    out[-1].remove_sample = True
    return out


def slimes_loss(model, samples, tis):
    """slime's policy_loss_function at its defaults, on policy: advantages of its groups' rewards, the mean over each sample's
    unmasked tokens (get_sum_of_sample_mean), over global_batch_size. tis: whether use_tis is on."""
    total = 0.0
    for sample in samples:
        if sample.response_length == 0:
            continue
        rewards = torch.tensor([other.reward for other in samples if other.group_index == sample.group_index], dtype=torch.float64)
        advantage = (sample.reward - rewards.mean()) / (rewards.std() + 1e-6)
        begin = len(sample.tokens) - sample.response_length
        log_prob, _ = hf64.log_probs_and_entropy(model.logits(sample.tokens[:begin], sample.tokens[begin:]), sample.tokens[begin:], 1.0)
        ratio = (log_prob - log_prob.detach()).exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        if tis:
            engine = torch.tensor(sample.rollout_log_probs, dtype=torch.float64)
            loss = loss * (log_prob.detach() - engine).exp().clamp(0.0, 2.0)
        mask = torch.tensor([0] * sample.response_length if sample.remove_sample else sample.loss_mask or [1] * sample.response_length)
        total = total + (loss * mask).sum() / mask.sum().clamp(min=1)
    return total / len(samples)


@pytest.mark.parametrize("tis", [False, True])
def test_k1_the_loss_of_slimes_snippet_and_its_gradient_are_slimes(client, tis):
    blocks = [block_with("def from_slime")] + [block_with("rollout_is_weights = ")] * tis
    scope = run(client, *(block.replace("adamw(1e-6)", "adamw(0.0, weight_decay=0.0)") for block in blocks), samples=uneven_samples())
    model = hf64.Hf64(client.export(f"before-{tis}", dtype="fp64"))
    probe = stemma.adamw(1.0, beta1=0.0, beta2=0.0, eps=1.0, weight_decay=0.0, max_grad_norm=0.0)  # moves weights by g / (|g| + 1)
    result = client.update_actor(scope["groups"], scope["loss"], probe)
    after = hf64.Hf64(client.export(f"after-{tis}", dtype="fp64")).parameters()
    loss = slimes_loss(model, uneven_samples(), tis)
    loss.backward()
    assert result.metrics["actor/loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert abs(slimes_loss(model, uneven_samples(), not tis).item() - loss.item()) > 1e-3, "the control: the weights show"
    gradients = model.gradients()
    moved = {name: parameter.detach() - after[name].detach() for name, parameter in model.parameters().items()}
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for name, gradient in gradients.items():  # log-probs and weights are sent in float32
        assert (moved[name] / (1 - moved[name].abs()) - gradient).abs().max() < 1e-6 * largest, name


@pytest.mark.parametrize("mask_dtype", [torch.long, torch.bool])
def test_k1_openrlhfs_experience_is_groups(client, mask_dtype):
    experience = types.SimpleNamespace(
        sequences=padded([row.prompt + row.tokens for row in ROWS], PAD),
        attention_mask=padded([[1] * len(row.prompt + row.tokens) for row in ROWS]),
        action_mask=beside_prompts("mask", skip=1).to(mask_dtype), advantages=beside_prompts("advantages", skip=1),
        action_log_probs=beside_prompts("old", skip=1), base_action_log_probs=beside_prompts("ref", skip=1))
    assert experience.action_mask.shape[1] == experience.sequences.shape[1] - 1
    assert_same(run(client, block_with("def from_openrlhf"), experience=experience)["groups"], groups_of(trained), KL)


def test_k1_nemo_rls_batch_is_groups(client):
    batch = {"input_ids": padded([row.prompt + row.tokens for row in ROWS], PAD),
             "input_lengths": torch.tensor([len(row.prompt + row.tokens) for row in ROWS]), "token_mask": beside_prompts("mask"),
             "sample_mask": torch.ones(len(ROWS)), "advantages": beside_prompts("advantages"), "prev_logprobs": beside_prompts("old"),
             "reference_policy_logprobs": beside_prompts("ref")}
    assert_same(run(client, block_with("def from_nemo_rl"), batch=batch)["groups"], groups_of(trained), KL)
    batch["sample_mask"][1] = 0.0
    made = run(client, block_with("def from_nemo_rl"), batch=batch)["groups"]
    assert len(made[0].rollouts) == 1 and made[0].rollouts[0].mask.tolist() == [1.0, 0.0, 1.0]


def trl_inputs():
    width = max(len(row.prompt) for row in ROWS)
    left = lambda values, pad: [pad] * (width - len(values)) + values  # noqa: E731
    return {"prompt_ids": torch.tensor([left(row.prompt, PAD) for row in ROWS]),
            "prompt_mask": torch.tensor([left([1] * len(row.prompt), 0) for row in ROWS]),
            "completion_ids": padded([row.tokens for row in ROWS], PAD),
            "completion_mask": padded([[1] * len(row.tokens) for row in ROWS]),
            "advantages": torch.tensor([row.advantages[0] for row in ROWS]), "old_per_token_logps": padded([row.old for row in ROWS])}


@pytest.mark.parametrize("has_old", [True, False])
def test_k1_trls_inputs_are_groups(client, has_old):
    inputs = trl_inputs()
    if not has_old:
        del inputs["old_per_token_logps"]
    made = run(client, block_with("def from_trl"), inputs=inputs)["groups"]
    assert_same(made, groups_of(lambda row: stemma.Rollout(row.tokens, advantage=row.advantages[0], old_log_probs=row.old if has_old
                                                           else None)), stemma.grpo(normalize_advantage_std=None))


@pytest.mark.parametrize("of_sequences", [True, False])
def test_k1_trls_tool_mask_and_ratios_reach_the_loss(client, of_sequences):
    ratios = [[0.5 + row + 0.25 * t * (not of_sequences) for t in range(len(ROWS[row].tokens))] for row in range(len(ROWS))]
    inputs = dict(trl_inputs(), tool_mask=padded([row.mask for row in ROWS], 1), importance_sampling_ratio=padded(ratios))
    if of_sequences:
        inputs["importance_sampling_ratio"] = torch.tensor([[ratio[0]] for ratio in ratios])
    made = run(client, block_with("def from_trl"), inputs=inputs)["groups"]
    number = {tuple(row.tokens): index for index, row in enumerate(ROWS)}
    assert_same(made, groups_of(lambda row: stemma.Rollout(
        row.tokens, mask=row.mask, advantage=row.advantages[0], old_log_probs=row.old,
        rollout_is_weights=ratios[number[tuple(row.tokens)]])), stemma.grpo(normalize_advantage_std=None))


# Recipes.

def recipe(client, text):
    """Without the loss of another section: the last one that a reader ran may be another trainer's."""
    return run(client, block_with("def from_slime"), "del loss", block_with(text), samples=samples())


def test_k1_a_leave_one_out_baseline_is_the_mean_of_the_others(client):
    made = recipe(client, "def leave_one_out")["groups"]
    assert [[rollout.advantage for rollout in group.rollouts] for group in made] == [[1.0, -1.0], [0.0, 0.0]]
    assert all(rollout.reward is None for group in made for rollout in group.rollouts)


def test_k1_groups_of_equal_rewards_are_left_out(client):
    [group] = recipe(client, "stemma.dapo(")["groups"]
    assert group.prompt == [1, 2, 3] and len(group.rollouts) == 2


def test_k1_parts_of_a_rollout_of_slime_are_one_sample_with_its_advantages(client):
    parts = [dataclasses.replace(sample, rollout_id=index // 2) for index, sample in enumerate(samples())]
    blocks = block_with("def from_slime"), block_with("def with_advantages")
    made = run(client, *blocks, samples=parts, train_data={"rewards": [1.0, 2.0, 3.0, 4.0]})["groups"]
    fields = [(rollout.sample_id, rollout.advantage, rollout.reward) for group in made for rollout in group.rollouts]
    assert fields == [("0", 1.0, None), ("0", 2.0, None), ("1", 3.0, None), ("1", 4.0, None)]
    made = run(client, *blocks, samples=samples(), train_data={"rewards": [1.0] * 4})["groups"]
    assert [rollout.sample_id for group in made for rollout in group.rollouts] == [None] * 4


def test_k1_weights_of_the_rollout_engine_are_truncated(client):
    scope = recipe(client, "rollout_is_weights = ")
    made = [rollout for group in scope["groups"] for rollout in group.rollouts]
    for row, rollout in zip(ROWS, made):
        assert rollout.rollout_is_weights == [min(math.exp(o - e), 2.0) for o, e in zip(rollout.old_log_probs, row.old)]
    weights = [w for rollout in made for w in rollout.rollout_is_weights]
    assert min(weights) < 1 and scope["result"].effective["old"]["from"] == "CLIENT"


def numbers(client, groups, agg):
    """Loss and gradient of a step that changes nothing."""
    loss = stemma.reinforce(loss_agg_mode=agg)
    metrics = client.update_actor(groups, loss, stemma.adamw(0.0, weight_decay=0.0)).metrics
    return metrics["actor/loss"], metrics["actor/grad_norm"]


@pytest.mark.parametrize("agg, counts", [("token-mean", False), ("seq-mean-token-sum", True)])
def test_k1_a_response_that_was_cut_counts_as_the_page_says(client, agg, counts):
    """Three rewards, so that what is left has a mean and a deviation."""
    rows = [dataclasses.replace(ROWS[0], reward=0.25), ROWS[0], ROWS[1]]
    plain = lambda row, **fields: stemma.Rollout(row.tokens, mask=row.mask, reward=row.reward, **fields)  # noqa: E731
    deviation = lambda values: math.sqrt(sum((v - sum(values) / len(values)) ** 2 for v in values) / (len(values) - 1))  # noqa: E731

    def by_hand(kept, rewards):
        mean, spread = sum(rewards) / len(rewards), deviation(rewards) + 1e-6
        return [stemma.Group("g", kept[0].prompt, [stemma.Rollout(row.tokens, mask=row.mask, advantage=(row.reward - mean) / spread)
                                                   for row in kept])]

    left_out = numbers(client, groups_of(plain, rows[:2]), agg)
    assert left_out == pytest.approx(numbers(client, by_hand(rows[:2], [0.25, 1.0]), agg), rel=1e-9)
    cut = groups_of(plain, rows)
    cut[0].rollouts[2].mask = [0, 0]
    masked = numbers(client, cut, agg)
    share = 2 / 3 if counts else 1
    loss, norm = numbers(client, by_hand(rows[:2], [0.25, 1.0, 0.0]), agg)
    assert masked == pytest.approx((share * loss, share * norm), rel=1e-9)
    assert abs(masked[1] - left_out[1]) > 1e-3 * left_out[1], "the control: the two differ"


def test_k1_an_empty_response_has_no_weights_of_the_rollout_engine(client):
    empty = samples()
    empty[1] = dataclasses.replace(empty[1], tokens=empty[1].tokens[:3], response_length=0, loss_mask=[], rollout_log_probs=[])
    made = run(client, block_with("def from_slime"), block_with("rollout_is_weights = "), samples=empty)["groups"][0].rollouts
    assert made[1].rollout_is_weights is None and len(made[0].rollout_is_weights) == 3
    assert [rollout.rollout_log_probs for rollout in made] == [None, None]


def test_k1_what_is_left_out_of_the_groups_is_out_of_the_update(client):
    kept = "kept = "
    scope = recipe(client, kept)
    assert len(scope["kept"]) == 3 and scope["result"].effective["num_groups"] == 2


def test_k1_every_snippet_of_the_page_is_run():
    texts = ("def by_prompt", "def from_slime", "def from_openrlhf", "def from_nemo_rl", "def from_trl", "def leave_one_out",
             "def with_advantages", "stemma.dapo(", "rollout_is_weights = ", "kept = ", "def weights_to_sglang")
    assert sorted(BLOCKS) == sorted(block_with(text) for text in texts)
