"""Groups that real workers share, two or the four of two copies with two stages: the losses, norms, log-probs and weights of
one worker."""

import pytest

import stemma
from e2e.gang.same_numbers import assert_same_results, assert_same_steps, assert_same_weights
from e2e.gang.small_groups import groups_of, make_model, serving

ADAM = stemma.adamw(1e-3)


# One hot group; groups of one rollout and of a prompt of one token are never split.
SIZES = ((24, 9), (12, 2), (17, 1), (1, 3))


def splitting(model, folder, mesh, split):
    """A client of the mesh's workers."""
    return serving(model, folder, "memory_budget_bytes: 128MB", f"mesh: {{{mesh}}}", f"split_groups: {split}")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module", params=[("dp: 2", "on"), ("dp: 2", "auto"), ("dp: 2, pp: 2", "on")], ids=str)
def pair(request, model, tmp_path_factory):
    """Clients of one worker, and of several that split groups."""
    with splitting(model, tmp_path_factory.mktemp("one"), "dp: 1", "off") as one, \
            splitting(model, tmp_path_factory.mktemp("split"), *request.param) as two:
        yield one, two


@pytest.mark.parametrize("mesh", ["dp: 2", "dp: 2, pp: 2"])
def test_the_plan_says_which_copy_has_how_many_rollouts(mesh, model, tmp_path):
    with splitting(model, tmp_path, mesh, "on") as client:
        plan = client.plan(groups_of(1, SIZES), stemma.grpo(), ADAM, old="on_policy", schedule="reuse")
    splits = {split["uid"]: split for split in plan["steps"][0]["split_groups"]}
    assert sorted(splits) == ["g0", "g1"], "those with two rollouts or more behind a prefix"
    assert sum(splits["g0"]["rollouts"]) == 9 and splits["g1"]["rollouts"] == [1, 1]
    assert all(sorted(split["ranks"]) == [0, 1] for split in splits.values())


def test_log_probs_of_a_split_group_are_those_of_one_worker(pair):
    groups = groups_of(1, SIZES)
    one, two = (client.log_probs(groups, schedule="reuse") for client in pair)
    assert_same_results(one, two, groups)


def test_three_steps_and_their_weights_are_those_of_one_worker(pair):
    for step in range(3):
        groups = groups_of(10 + step, SIZES)
        one, two = (client.update_actor(groups, loss=stemma.grpo(), adam=ADAM, schedule="reuse", old="on_policy",
                                        return_log_probs=True) for client in pair)
        assert_same_steps(one, two)
        assert_same_results(one.log_probs, two.log_probs, groups)
    assert_same_weights(pair, "three")


# A rollout's entry log-probs lie on the rank that computed them, in every mini-batch of every epoch.
def test_entry_log_probs_of_a_split_group_are_found_in_later_steps(pair):
    groups = groups_of(20, SIZES)
    one, two = (client.update_actor(groups, loss=stemma.grpo(), adam=ADAM, schedule="reuse", old="policy", mini_batch=2, epochs=2,
                                    shuffle=True, seed=3) for client in pair)
    assert len(one.steps) == 4
    assert_same_steps(one, two)


def test_one_hot_group_alone_is_trained_by_both(pair):
    groups = groups_of(30, ((40, 16),))
    one, two = (client.update_actor(groups, loss=stemma.grpo(), adam=ADAM, schedule="reuse", old="on_policy") for client in pair)
    assert_same_steps(one, two)
