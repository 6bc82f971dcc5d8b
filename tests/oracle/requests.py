"""Requests for the parity tests: every number is one that float32 holds exactly, and every ratio keeps a margin from the
kinks of its loss, so that two float64 implementations cannot fall on different sides.
"""

import copy
import math
import random

import numpy

from oracle import step

CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
ADAM = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0625,
        "weight_decay_scope": "ALL", "max_grad_norm": 0.0}

LOSSES = {
    "vanilla": {"loss_mode": "vanilla", "clip_ratio_c": 3.0, **CLIP},
    "vanilla_single": {"loss_mode": "vanilla", **CLIP},
    "gspo": {"loss_mode": "gspo", **CLIP},
    "cispo": {"loss_mode": "cispo", **CLIP},
    "importance_sampling": {"loss_mode": "importance_sampling"},
    "cross_entropy": {"loss_mode": "cross_entropy"},
    "gpg": {"loss_mode": "gpg"},
}
NEEDS_OLD = {"vanilla", "gspo", "cispo", "importance_sampling"}

# log r = lp - lo: inside and outside of [ln 0.8, ln 1.28] = [-0.223, 0.247], beyond dual clip's ln 3 = 1.099.
LOG_RATIOS = [-0.6, -0.35, -0.1, 0.02, 0.13, 0.4, 0.7, 1.4]
BEYOND_CLAMP = [-25.0, 23.0]             # |lp - lo| > 20: no gradient
GSPO_LOG_RATIOS = [-0.4, -0.12, 0.05, 0.15, 0.4]
REF_DIFFERENCES = [-1.5, -0.4, 0.3, 1.2, 3.0, -12.0]  # x = lr - lp: k3's value is capped for x > 2.61 and x < -11.0


def exact(value):
    """The nearest float32, as a Python number."""
    return float(numpy.float32(value))


def skeleton(shape, vocab, seed):
    """Groups of [(prompt length, [response lengths])] with random tokens."""
    rng = random.Random(seed)

    def tokens(count):
        return [rng.randrange(vocab) for _ in range(count)]

    return [{"uid": f"g{g}", "prompt_tokens": tokens(prompt),
             "rollouts": [{"rollout_id": f"g{g}/{i}", "response_tokens": tokens(length)}
                          for i, length in enumerate(responses)]}
            for g, (prompt, responses) in enumerate(shape)]


def make(model, shape, loss, seed=11, masks="some", adam=None, kl=None, ref_from="CLIENT", old_from="CLIENT",
         temperature=1.0, clamped=False, vocab=96, **extra):
    """A whole request. `masks`: none, some (zeros, and the last rollout of the first group wholly masked)."""
    header = {"loss": {**loss, "temperature": temperature, **extra}, "adam": {**ADAM, **(adam or {})}}
    header["loss"].setdefault("loss_agg_mode", "token-mean")
    request = {"header": header, "groups": skeleton(shape, vocab, seed)}
    rng = random.Random(seed + 1)
    if kl:
        header["loss"].update(kl_loss_coef=0.125, kl_loss_type=kl)
        header["ref"] = {"from": ref_from} if ref_from != "WEIGHTS" else {"from": "WEIGHTS", "weights": "policy"}
    mode = loss["loss_mode"]
    if mode in NEEDS_OLD:
        header["old"] = {"from": old_from} if old_from != "WEIGHTS" else {"from": "WEIGHTS", "weights": "policy"}
    _add_masks(request, masks, rng)
    log_probs = step.log_probs(model, request)
    for row in step.rows_of(request):
        _add_numbers(row, mode, log_probs.get(row.id), rng, header, clamped)
    return request


def _add_masks(request, masks, rng):
    if masks == "none":
        return
    for group in request["groups"]:
        for rollout in group["rollouts"]:
            count = len(rollout["response_tokens"])
            rollout["response_mask"] = [int(rng.random() < 0.8) for _ in range(count)]
            if count and not any(rollout["response_mask"]):
                rollout["response_mask"][rng.randrange(count)] = 1
    last = request["groups"][0]["rollouts"][-1]
    if len(request["groups"][0]["rollouts"]) > 1:
        last["response_mask"] = [0] * len(last["response_tokens"])


def _add_numbers(row, mode, log_prob, rng, header, clamped):
    rollout, count = row.rollout, len(row.response)
    if mode == "cross_entropy":
        rollout["loss_weights"] = [rng.randrange(-16, 17) / 16 or 0.5 for _ in range(count)]
    else:
        rollout["advantage"] = rng.choice([-1.75, -0.5, 0.25, 1.5])
    if "old" in header and header["old"]["from"] in ("CLIENT", "ROLLOUT"):
        name = "old_log_probs" if header["old"]["from"] == "CLIENT" else "rollout_log_probs"
        rollout[name] = _shifted(log_prob, count, _log_ratios(mode, row.mask.tolist(), rng, clamped))
    if header.get("ref", {}).get("from") == "CLIENT":
        rollout["ref_log_prob"] = _shifted(log_prob, count, [-rng.choice(REF_DIFFERENCES) for _ in range(count)])


def _log_ratios(mode, mask, rng, clamped):
    if mode == "gspo":  # its ratio is of the masked mean: noise around a chosen one
        noise = [rng.choice([-0.3, -0.05, 0.2, 0.35]) for _ in mask]
        center = sum(n * m for n, m in zip(noise, mask)) / max(sum(mask), 1)
        mean = rng.choice(GSPO_LOG_RATIOS)
        return [mean + n - center for n in noise]
    choices = LOG_RATIOS + (BEYOND_CLAMP if clamped else [])
    return [rng.choice(choices) for _ in mask]


def _shifted(log_prob, count, differences):
    return [exact(log_prob[t].item() - differences[t]) for t in range(count)]


def with_fields(request, **header):
    """A copy with header fields set."""
    copied = copy.deepcopy(request)
    copied["header"].update(header)
    return copied


def kink_margin(request, log_probs):
    """The smallest distance of a log-ratio (of its masked mean, for gspo) from a kink of the loss."""
    loss, margin = request["header"]["loss"], math.inf
    kinks = [20.0, -20.0, math.log(loss.get("clip_ratio_c", 3.0))]
    if "clip_ratio_low" in loss:
        kinks += [math.log(1 - loss["clip_ratio_low"]), math.log(1 + loss["clip_ratio_high"])]
    for row in step.rows_of(request):
        old = row.array("old_log_probs" if "old_log_probs" in row.rollout else "rollout_log_probs")
        if old is None or row.mask.sum() == 0:
            continue
        ratios = (log_probs[row.id] - old)[row.mask > 0]
        for ratio in [ratios.mean()] if loss["loss_mode"] == "gspo" else ratios:
            margin = min([margin, *(abs(ratio.item() - kink) for kink in kinks)])
    return margin
