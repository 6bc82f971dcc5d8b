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
