"""What the golden requests can tell apart: an oracle with one rule wrong must not agree with the product."""

import copy
import dataclasses

import pytest
import torch

from golden.pair import deviations
from golden.request_table import BY_NAME, UNCLIPPED
from oracle import payload, step
from oracle.training import Rules

FAR = 1e3  # units of the tolerance: a control that is nearer would hide behind a little more noise


def of_the_whole_request(request, _):
    return step.aggregation(request, step.rows_of(request))


def without_weights(request, rows):
    weights, denominator = step.aggregation(request, rows)
    return dict.fromkeys(weights, 1.0), denominator


def with_the_first_denominator():
    first = []

    def aggregate(request, rows):
        weights, denominator = step.aggregation(request, rows)
        first.append(denominator)
        return weights, first[0]
    return aggregate


def without_samples(request, rows):
    return step.aggregation(request, [dataclasses.replace(row, rollout={
        key: value for key, value in row.rollout.items() if key != "sample_id"}) for row in rows])


def without_stat_groups(request, rows):
    return step.aggregation(request, [dataclasses.replace(row, stat_group=str(row.group)) for row in rows])


def empty_rollouts_do_not_count(request, rows):
    return step.aggregation(request, [row for row in rows if row.mask.sum() > 0])


def biased_deviation(request):
    """std over N instead of N - 1."""
    result, members = step.advantages(request), {}
    for row in step.rows_of(request):
        members.setdefault(row.stat_group, []).append(row.id)
    return {name: result[name] * (len(ids) / (len(ids) - 1)) ** 0.5 if len(ids) > 1 else result[name]
            for ids in members.values() for name in ids}


def each_rollout_is_rewarded(request):
    bare = copy.deepcopy(request)
    for row in step.rows_of(bare):
        row.rollout.pop("sample_id", None)
    return step.advantages(bare)


def rounding_of_the_mean(request):
    """Equal rewards lose to their mean's rounding what they should lose exactly."""
    tiny = {row.id: torch.full((len(row.response),), 1e-17 / 1e-6, dtype=torch.float64) for row in step.rows_of(request)}
    return {name: torch.where(value == 0, tiny[name], value) for name, value in step.advantages(request).items()}


RULES = [
    ("token_mean", "the denominator of the whole request", lambda: Rules(aggregate=of_the_whole_request)),
    ("token_mean", "the first mini-batch's denominator", lambda: Rules(aggregate=with_the_first_denominator())),
    ("seq_mean_token_sum", "the first mini-batch's denominator", lambda: Rules(aggregate=with_the_first_denominator())),
    ("seq_mean_token_sum", "empty rollouts do not count", lambda: Rules(aggregate=empty_rollouts_do_not_count)),
    ("seq_mean_token_sum_norm", "the scale is not applied", lambda: Rules(aggregate=without_weights)),
    ("seq_mean_token_mean", "the rollouts' weights are not applied", lambda: Rules(aggregate=without_weights)),
    ("seq_mean_token_mean_by_sample", "sample ids are not read", lambda: Rules(aggregate=without_samples)),
    ("seq_mean_token_sum_by_sample", "samples are not counted", lambda: Rules(aggregate=without_samples)),
    ("seq_mean_token_sum_norm_by_sample", "samples are not counted", lambda: Rules(aggregate=without_samples)),
    ("seq_mean_token_sum_by_sample", "a sample is rewarded as often as it has rollouts",
     lambda: Rules(advantages=each_rollout_is_rewarded)),
    ("prompt_mean", "prompt-mean weights are not applied", lambda: Rules(aggregate=without_weights)),
    ("prompt_mean_all_in_one_step", "stat groups are not read", lambda: Rules(aggregate=without_stat_groups)),
    ("old_and_ref_of_the_entry_weights", "old and ref are the current weights'",
     lambda: Rules(old_weights_are_the_entry_weights=False)),
    ("rewards", "the biased deviation", lambda: Rules(advantages=biased_deviation)),
    ("equal_rewards", "the mean's rounding is left in", lambda: Rules(advantages=rounding_of_the_mean)),
    ("an_empty_step_in_the_middle", "an empty step moves the optimizer", lambda: Rules(empty_steps_are_skipped=False)),
]


def unclipped(case):
    """Where every step is clipped, a factor of the gradient moves the weights by the clip's 1e-6 only."""
    return dataclasses.replace(case, options={**case.options, "adam": UNCLIPPED})


def disagreement(pair, request, rules=Rules(), orders=None, wrong=None):
    """How far a wrong oracle is from the product, in units of the tolerance; the right one agrees, and both sides go on."""
    answer, parts = pair.product(request)
    right_orders = payload.orders(parts)
    start = pair.trainer.snapshot()
    found = deviations(answer, pair.oracle(wrong or request, orders(right_orders) if orders else right_orders, rules))
    pair.trainer.restore(start)
    assert max(deviations(answer, pair.oracle(request, right_orders)).values()) <= 1, "the right oracle must agree"
    pair.adopt(answer.weights)
    return found


@pytest.mark.parametrize("case,what,rules", RULES, ids=lambda value: value if isinstance(value, str) else "")
def test_h1_control_a_wrong_rule_shows(case, what, rules, pairs):
    case = unclipped(BY_NAME[case])
    pair = pairs.get(case.model)
    found = disagreement(pair, case.build(pair.model, "REUSE"), rules())
    assert found["weights"] > FAR, f"{what} does not show in the weights: {found}"


def test_h1_control_a_clip_without_its_epsilon_shows(pairs):
    case = BY_NAME["token_mean"]
    pairs.discard(case.model)  # second moments of large gradients would hide the clipped ones
    pair = pairs.get(case.model)
    assert disagreement(pair, case.build(pair.model, "REUSE"), Rules(clip_epsilon=0.0))["weights"] > FAR


ORDERS = [
    ("the order that was sent", lambda orders: [sorted(order) for order in orders]),
    ("the same order in each epoch", lambda orders: [orders[0] for _ in orders]),
    ("the order reversed", lambda orders: [order[::-1] for order in orders]),
]


@pytest.mark.parametrize("what,orders", ORDERS, ids=lambda value: value if isinstance(value, str) else "")
def test_h1_control_a_wrong_order_shows(what, orders, pairs):
    case = BY_NAME["token_mean_shuffled"]
    pair = pairs.get(case.model)
    found = disagreement(pair, case.build(pair.model, "REUSE"), orders=orders)
    assert found["weights"] > FAR, f"{what}: {found}"


def test_h1_control_decay_of_all_parameters_shows(pairs):
    case = BY_NAME["decay_of_matrices"]
    pair = pairs.get(case.model)
    request = case.build(pair.model, "REUSE")
    wrong = copy.deepcopy(request)
    wrong["header"]["adam"]["weight_decay_scope"] = "ALL"
    assert disagreement(pair, request, wrong=wrong)["weights"] > FAR
