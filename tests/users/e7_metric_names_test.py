"""E7: the update's own rates do not take the names that verl's trainer gives to the whole RL step."""

import pytest
import stemma
from e2e.errors.server import BUILD, MODEL, Cluster
from stemma import verl

TRAINERS = {"perf/throughput", "perf/time_per_step", "perf/total_num_tokens"}


def update(address, **options):
    groups = [stemma.Group(f"g{g}", [1, 2, 3, 4, 5], [stemma.Rollout([4 + r, 5], reward=float(r)) for r in range(4)])
              for g in range(2)]
    with stemma.Client(address) as client:
        return client.update_actor(groups, stemma.grpo(), stemma.adamw(1e-4), schedule="reuse", **options)


@pytest.fixture(scope="module")
def result():
    with Cluster() as cluster:
        yield update(cluster.address, mini_batch=1)


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


def test_e7_the_mfu_is_by_the_peak_of_all_devices(result):
    """As verl divides by the peak and by the world's size: FLOPs of a result are those of all workers."""
    with stemma.LocalServer(MODEL, binary=BUILD / "bin/stemma", threads=1, workers=2) as server:
        of_two = update(server.address)
    metrics = verl.metrics(of_two, peak_tflops=0.5, devices=2)
    dense, seconds = metrics["perf/actor/flops_dense"], metrics["perf/actor/time_per_step"]
    assert dense == pytest.approx(result.metrics["perf/actor/flops_dense"])
    assert metrics["perf/mfu/actor"] == pytest.approx(dense / seconds / (2 * 0.5e12))
    with pytest.raises(ValueError, match=r"several workers made this update: pass devices="):
        verl.metrics(of_two, peak_tflops=0.5)
    assert "perf/mfu/actor" not in verl.metrics(of_two)
    for devices in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="devices is .*: pass a whole number from 1 on"):
            verl.metrics(result, peak_tflops=0.5, devices=devices)
