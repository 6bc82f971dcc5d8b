"""Requests through the real server and worker against the oracle: loss, gradient norm, log-probs, outcomes and the exported
weights, all in float64. The pairs keep their state: each request starts where the one before it ended, on both sides.
"""

import pytest

from golden.pair import FORWARD, MODELS, tensor_deviation
from golden.request_table import BY_NAME, CASES, SHAPE
from oracle import requests
from stemma import _proto

SCHEDULES = ["REUSE", "DENSE"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_h1_the_request_trains_as_the_oracle_does(case, schedule, pairs):
    request = case.build(pairs.get(case.model).model, schedule)
    answer = pairs.agree(case.model, request)
    steps = -(-len(request["groups"]) // (request["header"].get("ppo_mini_batch_size") or len(request["groups"])))
    steps *= request["header"].get("ppo_epochs") or 1
    assert tuple(answer.outcomes) == (case.outcomes or ("APPLIED",) * steps)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", sorted(MODELS))
def test_h1_log_probs_of_the_current_weights_are_the_oracle_s(model, schedule, pairs):
    """ComputeLogProb after the requests before it: of the weights as they are now."""
    pair = pairs.get(model)
    groups = requests.skeleton(SHAPE, pair.spec.vocab, seed=31)
    log_probs, entropies = pair.product_log_probs(groups, temperature=0.75, schedule=schedule)
    expected_log_probs, expected_entropies = pair.oracle_log_probs(groups, temperature=0.75)
    assert tensor_deviation(log_probs, expected_log_probs) < FORWARD
    assert tensor_deviation(entropies, expected_entropies) < FORWARD


def test_h1_waves_join_groups_of_different_lengths(pairs):
    """The table would say nothing about that if the planner gave every group waves of its own."""
    case = BY_NAME["prompt_mean_all_in_one_step"]
    request = case.build(pairs.get(case.model).model, "REUSE")
    answer = pairs.agree(case.model, request)
    largest_group = max(len(group["rollouts"]) for group in request["groups"])
    assert any(len(uids) > 1 and max(sizes) > largest_group for sizes, uids in answer.waves), answer.waves


def test_h1_every_model_loss_and_aggregation_is_in_the_table(pairs):
    info = pairs.get("llama").cluster.stub.GetServerInfo(_proto.GetServerInfoRequest())
    assert {case.model for case in CASES} == set(MODELS)
    assert {case.loss for case in CASES} >= set(info.loss_modes)
    assert {case.options.get("loss_agg_mode", "token-mean") for case in CASES} == set(info.loss_agg_modes)
