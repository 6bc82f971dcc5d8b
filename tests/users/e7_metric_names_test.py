"""E7: the update's own rates do not take the names that verl's trainer gives to the whole RL step."""

import pytest
import stemma
from e2e.errors.server import Cluster
from stemma import verl

TRAINERS = {"perf/throughput", "perf/time_per_step", "perf/total_num_tokens"}


@pytest.fixture(scope="module")
def result():
    groups = [stemma.Group(f"g{g}", [1, 2, 3, 4, 5], [stemma.Rollout([4 + r, 5], reward=float(r)) for r in range(4)])
              for g in range(2)]
    with Cluster() as cluster, stemma.Client(cluster.address) as client:
        yield client.update_actor(groups, stemma.grpo(), stemma.adamw(1e-4), mini_batch=1, schedule="reuse")


def test_e7_a_step_and_a_request_give_their_rates_under_perf_actor(result):
    for metrics in [result.metrics, *(step.metrics for step in result.steps)]:
        assert not TRAINERS & set(metrics)
        seconds = metrics["perf/actor/time_per_step"]
        assert metrics["perf/actor/throughput"] == pytest.approx(metrics["perf/actor/total_num_tokens"] / seconds)
        assert metrics["perf/actor/tflops"] == pytest.approx(metrics["perf/actor/flops"] / seconds / 1e12)
        assert 0 < metrics["perf/actor/flops"] < metrics["perf/actor/flops_dense"]  # reuse ran less than the dense baseline
    assert result.metrics["perf/actor/total_num_tokens"] == 2 * 4 * (5 + 2)
    for name in ("time_per_step", "total_num_tokens", "flops", "flops_dense"):
        name = f"perf/actor/{name}"
        assert result.metrics[name] == pytest.approx(sum(step.metrics[name] for step in result.steps)), name


def test_e7_the_flops_are_those_of_the_plans_steps(result):
    """Without the log-prob pass that comes before them: it is no part of a step."""
    assert len(result.plan["steps"]) == 3
    for step, planned in zip(result.steps, result.plan["steps"][1:]):
        assert step.metrics["perf/actor/flops"] == pytest.approx(planned["flops"])
        assert step.metrics["perf/actor/flops_dense"] == pytest.approx(planned["flops_dense"])


def test_e7_verls_mfu_is_there_for_who_knows_the_peak(result):
    metrics = verl.metrics(result, peak_tflops=0.5)
    seconds = metrics["perf/actor/time_per_step"]
    assert metrics["perf/mfu/actor"] == pytest.approx(metrics["perf/actor/flops_dense"] / (seconds * 0.5e12))
    assert "perf/mfu/actor" not in verl.metrics(result) and not TRAINERS & set(metrics)
