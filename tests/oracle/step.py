"""One optimizer step of a request as the public API defines it, on any model that gives logits: the oracle's loss.

A request is a trace line: {"header": {...}, "groups": [...]}. Everything is float64; the per-token formulas are
losses.py's; autograd gives the gradients. Written for reading, one trajectory at a time.
"""

import dataclasses
import fractions

import torch

from oracle import losses
from oracle.hf64 import log_probs_and_entropy


def _tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@dataclasses.dataclass
class Row:
    """One rollout with what its group gives it."""

    group: int
    stat_group: str
    prompt: list
    rollout: dict

    @property
    def id(self):
        return self.rollout["rollout_id"]

    @property
    def response(self):
        return self.rollout["response_tokens"]

    @property
    def sample(self):
        """What the rollout is a part of; without a sample_id itself."""
        return ("sample", self.rollout["sample_id"]) if "sample_id" in self.rollout else self.id

    @property
    def mask(self):
        return _tensor(self.rollout.get("response_mask") or [1] * len(self.response))

    def array(self, name):
        values = self.rollout.get(name)
        return None if values is None else _tensor(values)


def rows_of(request, groups=None):
    chosen = range(len(request["groups"])) if groups is None else groups
    return [Row(index, request["groups"][index].get("stat_group", request["groups"][index]["uid"]),
                request["groups"][index]["prompt_tokens"], rollout)
            for index in chosen for rollout in request["groups"][index]["rollouts"]]


def mini_batches(request, orders=None):
    """[(epoch, group indices)] in order. `orders`: of the groups in each epoch; a shuffled request needs them."""
    header, count = request["header"], len(request["groups"])
    assert orders is not None or not header.get("shuffle")
    size = header.get("ppo_mini_batch_size") or count
    epochs = range(header.get("ppo_epochs") or 1)
    orders = orders or [list(range(count)) for _ in epochs]
    return [(epoch, orders[epoch][begin:begin + size]) for epoch in epochs for begin in range(0, count, size)]


def advantages(request):
    """By rollout_id, [R]. Sent ones as they are; else from rewards over the stat_group, one for each sample, with unbiased
    deviation."""
    normalize, by_stat, result = request["header"]["loss"].get("normalize_advantage_std"), {}, {}
    for row in rows_of(request):
        ones = torch.ones(len(row.response), dtype=torch.float64)
        if "token_advantages" in row.rollout:
            result[row.id] = row.array("token_advantages")
        elif "advantage" in row.rollout:
            result[row.id] = row.rollout["advantage"] * ones
        elif "reward" in row.rollout:
            by_stat.setdefault(row.stat_group, {}).setdefault(row.sample, []).append(row)
    for samples in by_stat.values():
        exact = [fractions.Fraction(rows[0].rollout["reward"]) for rows in samples.values()]
        mean = sum(exact) / len(exact) if len(exact) > 1 else 0  # exact, so a reward at the mean has the advantage 0
        centred = _tensor([float(reward - mean) for reward in exact])
        std = (centred.square().sum() / (len(exact) - 1)).sqrt() if len(exact) > 1 else 1.0
        scores = centred / (std + 1e-6) if normalize else centred
        result.update({row.id: score * torch.ones(len(row.response), dtype=torch.float64)
                       for rows, score in zip(samples.values(), scores) for row in rows})
    return result


def aggregation(request, rows):
    """({rollout_id: w}, D) over these rows (a mini-batch), as docs/losses.md tabulates them."""
    loss = request["header"]["loss"]
    mode = loss["loss_agg_mode"]

    def per_key(key):
        totals = {}
        for row in rows:
            totals[key(row)] = totals.get(key(row), 0.0) + row.mask.sum().item()
        return {row.id: 1.0 / max(totals[key(row)], 1.0) for row in rows}, len(totals)

    if mode == "token-mean":
        return {row.id: 1.0 for row in rows}, max(sum(row.mask.sum().item() for row in rows), 1.0)
    if mode == "token-sum":
        return {row.id: 1.0 for row in rows}, 1.0
    if mode == "seq-mean-token-sum":
        return {row.id: 1.0 for row in rows}, len({row.sample for row in rows})
    if mode == "seq-mean-token-sum-norm":
        return {row.id: 1.0 / loss["loss_scale_factor"] for row in rows}, len({row.sample for row in rows})
    if mode == "seq-mean-token-mean":
        return per_key(lambda row: row.sample)
    if mode == "prompt-mean":
        return per_key(lambda row: row.stat_group)
    raise ValueError(mode)


def has_loss(request, row, advantage):
    """False where nothing has a gradient: no unmasked token, or a policy term that is a multiple of 0 on every unmasked token
    while neither KL nor entropy has a coefficient, be it 0."""
    loss = request["header"]["loss"]
    if row.mask.sum() == 0:
        return False
    if loss.get("kl_loss_coef") is not None or loss.get("entropy_coeff") is not None:
        return True
    factor = row.array("loss_weights") if loss["loss_mode"] == "cross_entropy" else advantage
    importance = row.array("rollout_is_weights")
    if importance is not None:
        factor = factor * importance
    return bool((factor * row.mask).abs().max() > 0)


def is_run(request, row, advantage):
    """What has no loss is not run, unless its log-probs are asked for."""
    if request["header"].get("return_log_probs"):
        return bool(row.mask.sum() > 0)
    return has_loss(request, row, advantage)


@dataclasses.dataclass
class StepResult:
    loss: float
    log_probs: dict  # by rollout_id, of the rollouts that are run
    entropies: dict
    gradients: dict  # by Hugging Face name, before clipping
    has_loss: bool = False  # a rollout has
    # [layers, experts] of a model with experts: how many rows chose each. Of a trajectory those whose output a loss reads: all but
    # the last token's, in the last layer those that predict a response token.
    expert_rows: torch.Tensor | None = None

    def count_experts(self, model, row):
        chosen = getattr(model, "chosen", None)
        if not chosen:
            return
        if self.expert_rows is None:
            self.expert_rows = torch.zeros(len(chosen), model.model.config.num_experts, dtype=torch.int64)
        for layer, experts in enumerate(chosen):
            first = len(row.prompt) - 1 if layer == len(chosen) - 1 else 0
            experts = experts[first:len(row.prompt) + len(row.response) - 1].flatten()
            self.expert_rows[layer] += torch.bincount(experts, minlength=self.expert_rows.shape[1])


def _source(header, key, row, log_prob, entry_log_probs):
    """`old` or `ref` log-probs by their LogProbSource; None where the header has none."""
    if key not in header:
        return None
    origin = header[key]["from"]
    if origin == "ON_POLICY":
        return log_prob.detach()
    if origin == "WEIGHTS":
        return log_prob.detach() if entry_log_probs is None else entry_log_probs[row.id]
    if origin == "ROLLOUT":
        return row.array("rollout_log_probs")
    return row.array("old_log_probs" if key == "old" else "ref_log_prob")


def row_loss(request, row, log_prob, entropy, advantage, weight, entry_log_probs=None):
    """The rollout's share of the step's loss."""
    header, loss = request["header"], request["header"]["loss"]
    old = _source(header, "old", row, log_prob, entry_log_probs)
    tokens = losses.policy_loss(loss, log_prob, old_log_prob=old, advantage=advantage, mask=row.mask,
                                importance_weight=row.array("rollout_is_weights"), loss_weight=row.array("loss_weights"))
    if loss.get("kl_loss_coef"):
        ref = _source(header, "ref", row, log_prob, entry_log_probs)
        tokens = tokens + loss["kl_loss_coef"] * losses.kl(loss["kl_loss_type"], log_prob, ref)
    if loss.get("entropy_coeff"):
        tokens = tokens - loss["entropy_coeff"] * entropy
    return (tokens * weight).sum()


def run(model, request, groups=None, entry_log_probs=None, aggregate=aggregation, advantage=None):
    """One step's loss and gradients; `entry_log_probs`: of the request's entry weights, for steps after the first.
    `advantage` by rollout_id: other ones than the request's."""
    rows = rows_of(request, groups)
    advantage = advantages(request) if advantage is None else advantage
    weight, denominator = aggregate(request, rows)
    result = StepResult(0.0, {}, {}, {})
    parameters = model.parameters()
    for parameter in parameters.values():
        parameter.grad = None
    for row in rows:
        row_advantage = advantage.get(row.id)
        result.has_loss = result.has_loss or has_loss(request, row, row_advantage)
        if not is_run(request, row, row_advantage):
            continue
        log_prob, entropy = log_probs_and_entropy(model.logits(row.prompt, row.response), row.response,
                                                  request["header"]["loss"]["temperature"])
        result.count_experts(model, row)
        share = row_loss(request, row, log_prob, entropy, row_advantage, row.mask * weight[row.id] / denominator,
                         entry_log_probs)
        share.backward()
        result.loss += share.item()
        result.log_probs[row.id], result.entropies[row.id] = log_prob.detach(), entropy.detach()
    result.gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
                        for name, p in parameters.items()}
    return result


def log_probs(model, request):
    """By rollout_id, of every non-empty response."""
    temperature = request["header"]["loss"]["temperature"]
    with torch.no_grad():
        return {row.id: log_probs_and_entropy(model.logits(row.prompt, row.response), row.response, temperature)[0]
                for row in rows_of(request) if row.response}
