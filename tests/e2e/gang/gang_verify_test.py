"""VerifyGroup with real processes: what it says of either run is what training does with that schedule, on every mesh, and
it changes nothing."""

import concurrent.futures
import re
import subprocess

import pytest

import stemma
from e2e.gang.small_groups import STEMMA, groups_of, make_model, serving

SIZES = [(40, 4), (9, 3), (70, 2)]
LOSS, ADAM = stemma.grpo(), stemma.adamw(1e-2)
ROUNDING = 1e-12  # fp64: every sum has fewer than 1e4 terms


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    path = tmp_path_factory.mktemp("experts") / "model"
    subprocess.run([STEMMA, "model", "init", path, "--family", "qwen3_moe", "--seed", "2", "--vocab", "512", "--hidden", "32",
                    "--layers", "2", "--heads", "4", "--kv-heads", "2", "--ffn", "18", "--experts", "8", "--experts-per-token", "3",
                    "--norm-std", "0.1"], check=True, capture_output=True)
    return path


def update(client, schedule):
    return client.update_actor(groups_of(1, SIZES), LOSS, ADAM, old="on_policy", schedule=schedule).steps[0].metrics


@pytest.mark.parametrize("mesh", ["{}", "{dp: 2}", "{tp: 2}", "{pp: 2}", "{cp: 2}"])
def test_either_run_is_the_step_that_training_makes(model, tmp_path, mesh):
    said, trained = None, {}
    for schedule in ("reuse", "dense"):
        folder = tmp_path / schedule
        folder.mkdir()
        with serving(model, folder, f"mesh: {mesh}") as client:
            if said is None:
                said = client.verify(groups_of(1, SIZES), LOSS, ADAM, old="on_policy")
                assert client.model()["step"] == said.step == 0
            trained[schedule] = update(client, schedule)
    for metrics, schedule in ((said.reuse, "reuse"), (said.dense, "dense")):
        for name in ("actor/loss", "actor/grad_norm", "actor/entropy", "perf/actor/flops"):  # stages are planned by measured links
            assert metrics[name] == pytest.approx(trained[schedule][name], rel=ROUNDING), (schedule, name)
        assert metrics["prefix/tokens_computed"] == trained[schedule]["prefix/tokens_computed"]
    assert said.reuse["prefix/tokens_computed"] < said.dense["prefix/tokens_computed"]
    assert said.error < ROUNDING and said.log_prob_error_max < ROUNDING, said
    assert said.gradient_norm == pytest.approx(said.dense["actor/grad_norm"], rel=ROUNDING)
    assert said.log_prob_tokens == sum(len(rollout.tokens) for group in groups_of(1, SIZES) for rollout in group.rollouts)


@pytest.mark.parametrize("keys", [("mesh: {dp: 2, tp: 2}", "shard_parameters: on"), ("mesh: {tp: 2, ep: 2}",)])
def test_it_covers_every_parameter_of_all_ranks(model, experts, tmp_path, keys):
    of = experts if "ep" in keys[0] else model
    with serving(of, tmp_path, *keys) as client:
        said = client.verify(groups_of(2, SIZES), stemma.gspo(), ADAM, old="policy")
        assert said.error < ROUNDING, said
        names = [parameter.name for parameter in said.parameters]
        assert len(set(names)) == len(names)
        layers = {name.split(".")[1] for name in names if name.startswith("layers.")}
        assert layers == {str(layer) for layer in range(len(layers))} and len(layers) == (2 if of == experts else 4)
        assert sum(p.gradient_norm ** 2 for p in said.parameters) == pytest.approx(said.dense["actor/grad_norm"] ** 2, rel=1e-9)
        assert ("moe/expert_load_max" in said.dense) == ("moe/rank_load_max" in said.dense) == (of == experts)
        for name in ("moe/expert_load_max", "moe/idle_experts"):  # a shared row counts once for each rollout behind it
            assert said.reuse.get(name) == said.dense.get(name)
        assert [p.error_norm for p in said.parameters] == sorted((p.error_norm for p in said.parameters), reverse=True)


def test_verifications_beside_updates_change_no_bit_of_them(experts, tmp_path):
    """Ranks have experts of their own here, so the updates say how rows spread over them, too."""
    norms = {}
    for verifies in (True, False):
        folder = tmp_path / str(verifies)
        folder.mkdir()
        with serving(experts, folder, "mesh: {tp: 2, ep: 2}") as client, \
                concurrent.futures.ThreadPoolExecutor(max_workers=3) as pool:
            asked = [pool.submit(client.verify, groups_of(2, SIZES), LOSS, ADAM, old="policy") for _ in range(3 * verifies)]
            updates = [update(client, None) for _ in range(4)]
            assert all(verification.result().error < ROUNDING for verification in asked)
            assert client.model()["step"] == len(updates)
        norms[verifies] = [metrics["actor/grad_norm"] for metrics in updates]
        for metrics in updates:
            assert metrics["moe/expert_load_max"] >= 1 and 1 <= metrics["moe/rank_load_max"] <= 2 and "moe/idle_experts" in metrics
    assert norms[True] == norms[False] and len(set(norms[True])) == 4


def test_bf16_is_apart_by_rounding_and_within_the_tolerance_of_the_command(model, tmp_path):
    trace = tmp_path / "trace.jsonl"
    subprocess.run([STEMMA, "trace", "make", trace, "--seed", "1", "--steps", "1", "--vocab", "512", "--groups", "2", "--n", "4",
                    "--prompt-len", "fixed:60", "--response-len", "fixed:20"], check=True, capture_output=True)
    with stemma.LocalServer(model, binary=STEMMA, threads=1, dtype="bf16") as server:
        with stemma.Client(server.address) as client:
            said = client.verify(groups_of(3, SIZES), LOSS, ADAM, old="on_policy")
        # A sum in another order rounds otherwise somewhere among all gradients; log-probs may well be the same bits.
        assert 0 < said.error < 0.0625 and 0 <= said.log_prob_error_max < 0.0625, said
        call = [STEMMA, "verify", trace, "--server", server.address]
        assert re.search("within_tolerance +yes", subprocess.run(call, check=True, capture_output=True, text=True).stdout)
        narrow = subprocess.run([*call, "--tolerance", "1e-9"], capture_output=True, text=True)
        assert narrow.returncode == 1 and "more than the tolerance of 1e-09" in narrow.stderr, narrow


def test_one_that_nobody_waits_for_ends_and_the_next_request_runs(model, tmp_path):
    with serving(model, tmp_path) as client:
        long = [stemma.Group(f"g{i}", [1, 2, 3] * 300, [stemma.Rollout([5] * 400, advantage=1.0)] * 1) for i in range(16)]
        with pytest.raises(TimeoutError):
            client.verify(long, LOSS, ADAM, old="on_policy", timeout_s=1.5)
        before = client.model()
        assert update(client, None)["actor/grad_norm"] > 0
        assert client.model()["step"] == before["step"] + 1 == 1


def test_what_it_would_not_read_or_cannot_compare_is_refused(model, tmp_path):
    with serving(model, tmp_path) as client:
        with pytest.raises(stemma.StemmaError, match="DENSE, with which VerifyGroup compares"):
            client.verify(groups_of(1, SIZES), LOSS, ADAM, schedule="dense", old="on_policy")
        nothing = groups_of(1, SIZES)
        for group in nothing:
            for rollout in group.rollouts:
                rollout.advantage = 0.0
        with pytest.raises(stemma.StemmaError, match="no rollout with a gradient"):
            client.verify(nothing, LOSS, ADAM, old="on_policy")
        with pytest.raises(stemma.StemmaError) as mismatch:
            client.verify(groups_of(1, SIZES), LOSS, ADAM, old="on_policy", expected_step=3)
        assert mismatch.value.reason == "STEP_MISMATCH"
        assert client.requests() == [] and client.model()["step"] == 0
