"""C2: rewards whose variance overflows are an error that names them, never a step that is skipped as empty."""

import random

import grpc
import pytest
from e2e.errors.good_request import Request, refusal
from e2e.errors.server import Cluster


@pytest.fixture(scope="module", params=["fp32", "fp64"])
def cluster(request):
    with Cluster(flags=("--dtype", request.param)) as running:
        running.dtype = request.param
        yield running


def with_rewards(rewards, normalize=True):
    request = Request(("g0",))
    request.header["loss"]["normalize_advantage_std"] = normalize
    rollouts = []
    for i, reward in enumerate(rewards):
        rollout = dict(request.groups[0]["rollouts"][0], rollout_id=f"r{i}", reward=reward)
        del rollout["advantage"]
        rollouts.append(rollout)
    request.groups[0]["rollouts"] = rollouts
    return request


def trajectories(rewards, **loss):
    """Trajectories of 3, 1 and 1 turns: each turn a group, all of one stat_group."""
    turns = [("t0", 0), ("t0", 1), ("t1", 2), ("t0", 3), ("t2", 4)]
    request = Request([f"turn{number}" for _, number in turns])
    request.header["loss"].update(normalize_advantage_std=True, **loss)
    for (sample, number), group in zip(turns, request.groups):
        group["stat_group"] = "question"
        for rollout in group["rollouts"]:
            rollout.update(sample_id=sample, reward=rewards[number])
            del rollout["advantage"]
    return request


def loss_of(cluster, request, agg):
    request.header["loss"]["loss_agg_mode"] = agg
    return request.send(cluster.stub).result.steps[0].metrics["actor/loss"]


@pytest.mark.parametrize("agg", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_a_trajectory_of_several_turns_is_rewarded_once(cluster, agg):
    made = trajectories([1.0, 1.0, 0.0, 1.0, 0.0])
    sent = trajectories([0.0] * 5)
    for group in sent.groups:
        for rollout in group["rollouts"]:
            del rollout["reward"]
            rollout["advantage"] = 1.1547 if rollout["sample_id"] == "t0" else -0.57735
    for request in (made, sent):
        request.header["adam"].update(learning_rate=0.0, weight_decay=0.0)
    assert loss_of(cluster, made, agg) == pytest.approx(loss_of(cluster, sent, agg), rel=1e-5)


def test_two_rewards_of_one_trajectory_are_refused(cluster):
    error = refusal(lambda: trajectories([1.0, 1.0, 0.0, 0.5, 0.0]).send(cluster.stub))
    assert (error.reason, error.fields) == ("INVALID_REQUEST", ["groups[3].rollouts[0].reward"])
    assert "is 0.5, but 1 in groups[0].rollouts[0] of the same sample_id t0, one sample in the whole request: send one reward" in error.message
    assert error.metadata["uid"] == "turn3"


def test_a_reward_alone_is_its_own_advantage_and_the_result_says_so(cluster):
    alone = "1 stat_group has one reward: its advantage is the reward itself"
    assert list(with_rewards([0.5]).send(cluster.stub).result.warnings) == [alone]
    assert not with_rewards([0.5, 0.25]).send(cluster.stub).result.warnings


def test_rewards_whose_variance_overflows_are_named(cluster):
    error = refusal(lambda: with_rewards([1e200, -1e200, 0.0]).send(cluster.stub))
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert set(error.fields) == {"groups[0].rollouts[0].reward", "groups[0].rollouts[1].reward"}
    assert "e+200" in error.message and "overflows in " + cluster.dtype in error.message
    assert error.metadata["uid"] == "g0"


@pytest.mark.parametrize("normalize", [True, False])
def test_rewards_of_any_size_give_a_step_or_an_error_that_says_why(cluster, normalize):
    seed = 20261122
    draw = random.Random(seed)
    outcomes = set()
    for case in range(30):
        top = draw.choice((3, 15, 40, 308))
        rewards = [draw.choice([-1, 1]) * 10.0 ** draw.uniform(-3, top) for _ in range(3)]
        request = with_rewards(rewards, normalize)
        request.header["loss"]["kl_loss_coef"] = 0.0
        where = f"seed {seed} case {case} rewards {rewards}"
        try:
            step = request.send(cluster.stub).result.steps[0]
        except grpc.RpcError as raised:
            error = refusal(lambda raised=raised: (_ for _ in ()).throw(raised))
            assert error.reason in ("INVALID_REQUEST", "NONFINITE_GRADIENT"), where
            outcomes.add(error.reason)
            continue
        assert step.outcome == 1, f"{where}: rewards that differ are not an empty step"
        outcomes.add("applied")
    assert "applied" in outcomes and len(outcomes) > 1, outcomes
