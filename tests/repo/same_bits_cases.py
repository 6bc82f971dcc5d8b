"""What same_bits.py replays: models, traces and configurations, all drawn from fixed seeds.

Every case is planned alike each time: a request's plan depends on measured seconds once steps have been measured, so a case
forces what would be chosen by time, or sends one request only.
"""

import dataclasses
import json
import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE_TRACE = ROOT / "examples" / "traces" / "reverse4.jsonl"

VOCAB = 211
_SIZES = ["--layers", "3", "--hidden", "64", "--heads", "4", "--kv-heads", "2", "--head-size", "16", "--ffn", "136",
          "--vocab", str(VOCAB), "--norm-std", "0.1", "--weight-std", "0.08"]
# Arguments of `stemma model init`. Tied and not, with biases and query norms by family, with stretched positions.
MODELS = {
    "llama": ["--family", "llama", "--seed", "11", "--llama3-rope", *_SIZES],
    "qwen2": ["--family", "qwen2", "--seed", "12", "--tied", *_SIZES],
    "qwen3": ["--family", "qwen3", "--seed", "13", *_SIZES],
}
FAMILIES = tuple(MODELS)
DTYPES = ("fp64", "fp32", "bf16")

AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean",
                "prompt-mean")
KL_TYPES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
MODES = ("vanilla", "gspo", "cispo", "importance_sampling", "cross_entropy", "gpg")
OLD_READ_BY = ("vanilla", "gspo", "cispo", "importance_sampling")


AMPLE = 4 << 30  # bytes: not what the machine has free, which is part of the plan and differs each time
# Bytes that hold the state of a model and a part of its tape, so that the planner must choose policies.
TIGHT = {"fp64": 9 << 20, "fp32": 5 << 20, "bf16": 5 << 20}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    model: str    # of MODELS, or "example"
    trace: str    # of TRACES, or "example"
    config: tuple  # (key of run.yaml, value) pairs
    threads: int = 1


def _loss(rng, mode, index):
    loss = {"loss_mode": mode, "loss_agg_mode": AGGREGATIONS[index % len(AGGREGATIONS)],
            "temperature": rng.choice([1.0, 0.7])}
    if mode in ("vanilla", "gspo", "cispo"):
        loss.update(clip_ratio_low=0.2, clip_ratio_high=0.3)
    if mode == "vanilla":
        loss["clip_ratio_c"] = 3.0
    if loss["loss_agg_mode"] == "seq-mean-token-sum-norm":
        loss["loss_scale_factor"] = 17.0
    if index % 3 == 0:
        loss["entropy_coeff"] = 0.01
    return loss


def _adam(rng):
    return {"learning_rate": 10 ** rng.uniform(-4, -3), "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.1,
            "weight_decay_scope": rng.choice(["ALL", "MATRICES"]), "max_grad_norm": rng.choice([0.0, 0.05, 10.0])}


def _near(rng, count):
    """Log-probs as an untrained model gives them, and a little off."""
    return [-5.4 + rng.gauss(0, 0.5) for _ in range(count)]


def _rollout(rng, name, header, count):
    rollout = {"rollout_id": name, "response_tokens": [rng.randrange(VOCAB) for _ in range(count)]}
    if rng.random() < 0.4 and count:
        rollout["response_mask"] = [int(rng.random() < 0.7) for _ in range(count)]
    if header.get("old", {}).get("from") == "CLIENT":
        rollout["old_log_probs"] = _near(rng, count)
    if header.get("ref", {}).get("from") == "CLIENT":
        rollout["ref_log_prob"] = _near(rng, count)
    if header["loss"]["loss_mode"] == "cross_entropy":
        rollout["loss_weights"] = [abs(rng.gauss(0, 1)) for _ in range(count)]
    else:
        rollout["advantage"] = rng.gauss(0, 1)
    return rollout


def request(seed, mode, index, groups, steps):
    """A request of `groups`, (prompt tokens, [response tokens]) each; with `steps` it is cut into several."""
    rng = random.Random(seed)
    header = {"loss": _loss(rng, mode, index), "adam": _adam(rng)}
    if mode in OLD_READ_BY:
        weights = steps and index % 2 == 1
        header["old"] = {"from": "WEIGHTS", "weights": "policy"} if weights else {"from": "CLIENT"}
    if index % 2 == 0 and mode != "cross_entropy":
        header["loss"].update(kl_loss_coef=0.05, kl_loss_type=KL_TYPES[index % len(KL_TYPES)] + ("+" if index % 4 else ""))
        header["ref"] = {"from": "CLIENT"}
    if steps:
        header.update(ppo_mini_batch_size=max(1, len(groups) // 2), ppo_epochs=2, shuffle=True, seed=seed)
    return {"header": header, "groups": [
        {"uid": f"g{g}", "prompt_tokens": [rng.randrange(VOCAB) for _ in range(prompt)],
         "rollouts": [_rollout(rng, f"g{g}/{r}", header, count) for r, count in enumerate(responses)]}
        for g, (prompt, responses) in enumerate(groups)]}


def _ragged(rng):
    """Groups with prompts of one token, responses of none, one rollout, and a prompt of more than one block of keys."""
    groups = [(rng.choice([1, 2, rng.randint(3, 60)]), [rng.choice([0, 1, rng.randint(2, 40)]) for _ in range(rng.randint(1, 5))])
              for _ in range(rng.randint(1, 4))]
    return [*groups, (rng.randint(500, 620), [rng.randint(1, 50) for _ in range(3)])]


def _losses():
    """Each loss mode twice, every aggregation twice, in one step and in several."""
    rng = random.Random(7)
    return [request(100 + i, mode, i, _ragged(rng), steps=i % 2 == 1) for i, mode in enumerate(MODES * 2)]


def _memory():
    """Prompts and responses that make tapes, blocks and copies worth having."""
    rng = random.Random(8)
    groups = [(rng.randint(90, 700), [rng.randint(1, 130) for _ in range(rng.randint(2, 5))]) for _ in range(4)]
    return [request(200, "vanilla", 0, groups, steps=True), request(201, "cispo", 2, groups[:2], steps=False)]


def _one():
    """One request: its plan is made before anything is measured."""
    rng = random.Random(9)
    return [request(300, "vanilla", 0, [*_ragged(rng), *_ragged(rng), (64, [40] * 8)], steps=True)]


TRACES = {"losses": _losses, "memory": _memory, "one": _one}


def write_trace(name, path):
    lines = [{"schema": "stemma.trace.v1"}, *TRACES[name]()]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")


def _case(words, model, trace, dtype, threads=1, **config):
    name = " ".join([dtype, model, trace, *words])
    return Case(name, model, trace, tuple({"dtype": dtype, "memory_budget_bytes": AMPLE, **config}.items()), threads)


def _base():
    """Every loss mode in every family and dtype, as waves of three; by turns with reuse and dense."""
    for d, dtype in enumerate(DTYPES):
        for f, family in enumerate(FAMILIES):
            schedule = ("reuse", "reuse", "dense")[(d + f) % 3]
            yield _case([schedule], family, "losses", dtype, schedule=schedule, wave_suffixes=3)


def _automatic():
    for dtype, family in zip(DTYPES, FAMILIES):
        yield _case(["auto"], family, "one", dtype, schedule="auto")
        yield _case(["tight budget"], family, "one", dtype, memory_budget_bytes=TIGHT[dtype], host_memory_bytes=1 << 28)


def _settings():
    """Settings of `memory`, family and dtype in turns."""
    waves = {"schedule": "reuse", "wave_suffixes": 4}
    for i, policy in enumerate(["s0", "s1", "s2", "s3", "s4", "s5"]):
        yield [f"prefix {policy}"], {**waves, "prefix_policy": policy, "suffix_policy": f"s{(i + 2) % 5}"}
    for i in range(5):
        yield [f"suffix s{i}"], {**waves, "schedule": "dense" if i % 2 else "reuse", "suffix_policy": f"s{i}"}
    for policy in ("s0", "s1", "s2", "s3"):
        yield [f"offload {policy}"], {**waves, "prefix_policy": policy, "offload": "on", "host_memory_bytes": 1 << 28}
    for rows, policy in ((64, "s0"), (200, "s3"), (333, "s5")):
        yield [f"blocks {rows} {policy}"], {**waves, "prefix_policy": policy, "prefix_block_rows": rows}
    for layout in ("padded", "packed"):
        yield [f"layout {layout}"], {**waves, "layout": layout}
    yield ["layout one_by_one"], {"schedule": "reuse", "layout": "one_by_one"}
    yield ["small head chunks"], {**waves, "head_chunk_tokens": 7}
    yield ["one suffix a wave"], {**waves, "wave_suffixes": 1}
    yield ["states on the host"], {**waves, "optimizer_residency": "host", "host_memory_bytes": 1 << 28}


def _memory_cases():
    for i, (words, config) in enumerate(_settings()):
        yield _case(words, FAMILIES[i % 3], "memory", DTYPES[(i + i // 3) % 3], **config)
    yield _case(["two threads"], "qwen3", "memory", "bf16", threads=2, schedule="reuse", wave_suffixes=4)


def _example():
    for schedule in ("reuse", "dense"):
        yield _case([schedule], "example", "example", "fp32", schedule=schedule, wave_suffixes=8)


def cases():
    return [*_base(), *_automatic(), *_memory_cases(), *_example()]
