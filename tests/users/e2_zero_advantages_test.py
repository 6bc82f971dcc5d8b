"""E2: a step in which nothing has a gradient has its metrics, and says why nothing was computed."""

import pathlib

import pytest
import stemma
from e2e.errors.server import Cluster
from e2e.file_digest import weights_digest


@pytest.fixture(scope="module")
def client():
    with Cluster(flags=("--dtype", "fp64")) as cluster, stemma.Client(cluster.address) as connected:
        yield connected


def group(uid, advantages, mask=None):
    return stemma.Group(uid, [1, 2, 3, 4], [
        stemma.Rollout([5, 6 + i, 7], advantage=a, **({} if mask is None else {"mask": mask}))
        for i, a in enumerate(advantages)])


def update(client, groups, loss=None, **options):
    return client.update_actor(groups, loss=loss or stemma.reinforce(),
                               **{"adam": stemma.adamw(1e-3), "old": None, **options})


ZERO, SOME = (0.0, 0.0), (1.0, -0.5)
# Ratios of nothing to nothing, rates of no time, and bytes that nobody measured.
LEFT_OUT = {"prefix/token_ratio", "perf/actor/throughput", "perf/actor/tflops", "measured/state_bytes", "actor/entropy",
            "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl", "time/log_probs_s"}


@pytest.mark.parametrize("options", [{"old": None}, {"loss": stemma.grpo(), "old": "policy"}],
                         ids=["without the worker", "after the entry pass"])
def test_a_step_with_all_advantages_zero_has_every_metric_and_a_warning(client, options):
    applied = update(client, [group(f"a{i}", SOME) for i in range(4)], **options)
    empty = update(client, [group(f"z{i}", ZERO) for i in range(4)], **options)
    assert [step.outcome for step in empty.steps] == ["SKIPPED_EMPTY"]
    assert empty.steps[0].step == applied.steps[0].step, "no step was made"
    warning = "all advantages are 0 in 4 of 4 groups: nothing was computed"
    assert empty.warnings == empty.steps[0].warnings == [warning] and applied.warnings == []
    for metrics, other in ((empty.metrics, applied.metrics), (empty.steps[0].metrics, applied.steps[0].metrics)):
        assert set(other) - set(metrics) <= LEFT_OUT, sorted(set(other) - set(metrics))
        assert not {name for name in metrics if name not in other and not name.startswith("perf/")}
        for name in ("actor/loss", "actor/pg_loss", "actor/grad_norm", "actor/token_coverage",
                     "prefix/tokens_computed", "prefix/tokens_logical", "time/suffix_s", "time/apply_s"):
            assert metrics[name] == 0.0, name
        assert metrics["actor/lr"] == 1e-3
        assert metrics["plan/groups_empty"] == 4 and other["plan/groups_empty"] == 0


def test_an_empty_mini_batch_does_not_pull_the_means_of_the_request_down(client):
    alone = update(client, [group("a", SOME)])
    mixed = update(client, [group("z", ZERO), group("a", SOME), group("y", ZERO)], mini_batch=1)
    assert [step.outcome for step in mixed.steps] == ["SKIPPED_EMPTY", "APPLIED", "SKIPPED_EMPTY"]
    only = mixed.steps[1].metrics
    assert mixed.metrics == pytest.approx(only) and only["actor/grad_norm"] > 0 and alone.metrics["actor/grad_norm"] > 0
    text = "all advantages are 0 in 1 of 1 groups: nothing was computed"
    assert mixed.warnings == [f"step 1 of 3: {text}", f"step 3 of 3: {text}"]
    assert [step.warnings for step in mixed.steps] == [[text], [], [text]]


def test_groups_that_are_left_out_of_an_applied_step_are_counted_and_said(client):
    result = update(client, [group("a", SOME), group("z", ZERO), group("m", SOME, mask=[0, 0, 0]), group("b", (0.0, 1.0))])
    assert [step.outcome for step in result.steps] == ["APPLIED"] and result.metrics["plan/groups_empty"] == 2
    assert result.warnings == ["all advantages are 0 in 1 of 4 groups: these were not computed",
                               "no response token has mask 1 in 1 of 4 groups: these were not computed"]


def test_equal_rewards_are_zero_advantages(client):
    groups = [stemma.Group("g", [1, 2, 3], [stemma.Rollout([5 + i, 6], reward=0.1) for i in range(6)])]
    result = update(client, groups, loss=stemma.grpo(), old="policy")
    assert result.metrics["actor/loss"] == 0.0
    assert result.warnings == ["all advantages are 0 in 1 of 1 groups: nothing was computed"]


def test_returned_log_probs_change_no_weights(client):
    """AdamW goes on by its momentum and weight decay even where the gradient is 0, so such a step must not be applied."""
    adam = stemma.adamw(1e-2, weight_decay=0.1)
    update(client, [group("a", SOME)], adam=adam)  # gives the moments something to go on by
    before = weights_digest(pathlib.Path(client.export("before")))
    for epochs in (1, 2):
        asked = update(client, [group("z", ZERO)], adam=adam, epochs=epochs, return_log_probs=True)
        assert [step.outcome for step in asked.steps] == ["SKIPPED_EMPTY"] * epochs
        assert weights_digest(pathlib.Path(client.export(f"asked-{epochs}"))) == before
        assert len(asked.log_probs) == 2, "they were computed all the same"
    assert asked.steps[0].metrics["actor/token_coverage"] == 1.0 and asked.steps[0].metrics["actor/grad_norm"] == 0.0
    assert asked.steps[0].warnings == ["all advantages are 0 in 1 of 1 groups: these were computed for their log-probs alone"]
    update(client, [group("b", SOME)], adam=adam)
    assert weights_digest(pathlib.Path(client.export("after"))) != before


def test_the_pass_for_log_probs_is_the_requests_whatever_its_first_step_is(client):
    result = update(client, [group("z", ZERO), group("a", SOME)], loss=stemma.grpo(), old="policy", mini_batch=1)
    assert [step.outcome for step in result.steps] == ["SKIPPED_EMPTY", "APPLIED"]
    first, second = (step.metrics for step in result.steps)
    assert first["time/log_probs_s"] > 0 and "time/log_probs_s" not in second
    assert result.metrics["time/log_probs_s"] == first["time/log_probs_s"]
    assert first["perf/actor/time_per_step"] == 0 and "perf/actor/throughput" not in first, "it did nothing else"


def test_other_reasons_for_an_empty_step_are_named(client):
    masked = update(client, [group("m", SOME, mask=[0, 0, 0])])
    assert masked.warnings == ["no response token has mask 1 in 1 of 1 groups: nothing was computed"]
    weights = [stemma.Group("g", [1, 2], [stemma.Rollout([5, 6], loss_weights=[0.0, 0.0])])]
    assert update(client, weights, loss=stemma.cross_entropy()).warnings == [
        "all loss_weights are 0 in 1 of 1 groups: nothing was computed"]


def test_a_long_request_repeats_a_few_warnings_and_counts_the_rest(client):
    result = update(client, [group("z", ZERO)], epochs=12)
    assert len(result.steps) == 12 and len(result.warnings) == 9
    assert result.warnings[-1] == "4 more warnings stand at their steps"
    assert result.metrics["actor/loss"] == 0.0
