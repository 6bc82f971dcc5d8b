"""L1: log-probs of a pass that come back as old ones are the update's own where both run with one schedule, in bf16 and under
gspo's narrow clip, so that nothing of an on-policy step is clipped."""

import random
import subprocess

import pytest
import stemma
from e2e.errors.server import BUILD

NARROW = dict(clip_ratio_low=3e-4, clip_ratio_high=4e-4)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([BUILD / "bin/stemma", "model", "init", folder, "--family", "qwen3", "--hidden", "64", "--layers", "4",
                    "--vocab", "128", "--seed", "1"], check=True, capture_output=True)
    with stemma.LocalServer(folder, binary=BUILD / "bin/stemma", threads=1, dtype="bf16") as server, \
            stemma.Client(server.address) as connected:
        yield connected


def drawn_groups(seed):
    draw = random.Random(seed)
    tokens = lambda least, most: [draw.randrange(128) for _ in range(draw.randint(least, most))]
    return [stemma.Group(f"g{g}", tokens(40, 120), [stemma.Rollout(tokens(10, 60), advantage=draw.gauss(0, 1)) for _ in range(4)])
            for g in range(4)]


def first_step(client, groups, log_probs, schedule, loss):
    for group in groups:
        for i, rollout in enumerate(group.rollouts):
            rollout.old_log_probs = log_probs[f"{group.uid}/{i}"].log_probs
    result = client.update_actor(groups, loss, stemma.adamw(0.0), old="client", schedule=schedule)
    return result.steps[0].metrics


@pytest.mark.parametrize("loss", [stemma.gspo(**NARROW), stemma.grpo(**NARROW)], ids=["gspo", "grpo"])
@pytest.mark.parametrize("schedule", ["reuse", "dense"])
def test_a_pass_and_an_update_of_one_schedule_agree(client, schedule, loss):
    groups = drawn_groups(7)
    metrics = first_step(client, groups, client.log_probs(groups, schedule=schedule), schedule, loss)
    assert metrics["actor/pg_clipfrac"] == 0
    assert abs(metrics["actor/ppo_kl"]) < 1e-6  # log-probs are sent as float32


def test_schedules_differ_by_rounding_that_a_narrow_clip_sees(client):
    groups = drawn_groups(7)
    ways = {schedule: client.log_probs(groups, schedule=schedule) for schedule in ("reuse", "dense")}
    differences = [abs(a - b) for name in ways["reuse"] for a, b in zip(ways["reuse"][name].log_probs, ways["dense"][name].log_probs)]
    assert 1e-4 < max(differences) < 0.2, max(differences)  # docs/verl.md: up to 0.1 in a small model
    assert first_step(client, groups, ways["dense"], "reuse", stemma.grpo(**NARROW))["actor/pg_clipfrac"] > 0
