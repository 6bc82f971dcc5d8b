"""C1: of a request of several steps, one whose gradient is not finite says which it is, why, and what of the others stays."""

import pytest
import stemma
from e2e.errors.server import Cluster


@pytest.fixture(scope="module")
def client():
    with Cluster() as running, stemma.Client(running.address) as connected:
        yield connected


def group(uid, advantage):
    """On policy nothing clips: a gradient of 1e30 has squares that no fp32 holds."""
    return stemma.Group(uid, [1, 2, 3, 4], [stemma.Rollout([5, 6, 7], advantage=a) for a in (advantage, -advantage)])


def update(client, **options):
    groups = [group("a", 1.0), group("b", 1e30), group("c", 1.0)]
    return client.update_actor(groups, stemma.grpo(loss_agg_mode="token-sum"), stemma.adamw(1e-3, max_grad_norm=0),
                               mini_batch=1, **options)


def test_an_abort_says_which_step_it_was_and_what_stays(client):
    step = client.model()["step"]
    with pytest.raises(stemma.StemmaError) as raised:
        update(client)
    error = raised.value
    assert error.reason == "NONFINITE_GRADIENT" and "step 2 of 3: the gradient is too large" in error.message, error
    assert "nothing of this step was applied, 1 of 3 steps stay applied" in error.message
    assert error.message.count("1 of 3 steps") == 1
    assert (error.metadata["steps_applied"], error.metadata["steps_total"]) == ("1", "3")
    assert client.model()["step"] == step + 1


def test_a_step_that_is_skipped_says_why_and_the_others_are_made(client):
    result = update(client, on_nonfinite="skip")
    assert [step.outcome for step in result.steps] == ["APPLIED", "SKIPPED_NONFINITE", "APPLIED"]
    assert [bool(step.warnings) for step in result.steps] == [False, True, False]
    assert "the step was skipped: the gradient is too large: its norm is" in result.steps[1].warnings[0]
    assert result.warnings == [f"step 2 of 3: {result.steps[1].warnings[0]}"]
