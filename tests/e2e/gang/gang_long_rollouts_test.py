"""Rollouts that real workers cut by rows, because none has room for them: the losses, norms, log-probs and weights of one worker."""

import random

import pytest

import stemma
from e2e.gang.same_numbers import assert_same_results, assert_same_steps, assert_same_weights
from e2e.gang.small_groups import VOCAB, make_model, serving

ADAM = stemma.adamw(1e-3)
AMPLE, TIGHT = "64MB", "28MB"  # of which the second leaves a rank 10 MiB above the state


def long_groups(seed):
    """One rollout of many tokens beside short ones, behind a prompt and without a prefix."""
    rng = random.Random(seed)

    def tokens(count):
        return [rng.randrange(VOCAB) for _ in range(count)]

    return [stemma.Group(f"g{i}", tokens(prompt), [
        stemma.Rollout(tokens(count), advantage=rng.uniform(-1, 1), rollout_id=f"{i}/{n}") for n, count in enumerate(rollouts)])
            for i, (prompt, rollouts) in enumerate([(24, (400, 9, 30)), (1, (420, 11)), (12, (5, 7))])]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def pair(model, tmp_path_factory):
    """Clients of one worker with enough memory, and of two without."""
    with serving(model, tmp_path_factory.mktemp("one"), f"memory_budget_bytes: {AMPLE}", "offload: off") as one, \
            serving(model, tmp_path_factory.mktemp("two"), f"memory_budget_bytes: {TIGHT}", "offload: off", "mesh: {cp: 2}") as two:
        yield one, two


def test_the_plan_says_that_rollouts_are_cut(pair):
    plans = [client.plan(long_groups(1), stemma.grpo(), ADAM, old="on_policy", schedule="reuse") for client in pair]
    one, two = ([cluster["memory_reason"] for cluster in plan["steps"][0]["clusters"]] for plan in plans)
    assert not any("cut" in reason for reason in one), one
    assert all("1 rollout cut by rows over 2 ranks" in reason for reason in two), two


def test_log_probs_of_long_rollouts_are_those_of_one_worker(pair):
    groups = long_groups(1)
    one, two = (client.log_probs(groups, schedule="reuse") for client in pair)
    assert_same_results(one, two, groups)


# GSPO's ratio is one of the whole rollout; its old log-probs are those of a pass before the step.
@pytest.mark.parametrize("loss, old", [(stemma.grpo(), "on_policy"), (stemma.gspo(), "policy")], ids=["grpo", "gspo"])
def test_two_steps_and_their_weights_are_those_of_one_worker(loss, old, pair):
    for step in range(2):
        groups = long_groups(10 + step)
        one, two = (client.update_actor(groups, loss=loss, adam=ADAM, schedule="reuse", old=old, return_log_probs=True)
                    for client in pair)
        assert_same_steps(one, two)
        assert_same_results(one.log_probs, two.log_probs, groups)
    assert_same_weights(pair, f"after-{old}")
