"""Whole requests, one after another: the steps of the oracle with the optimizer state that they share.

AdamW is torch's own, in float64. What surrounds it is written out here: the order of the mini-batches, the clip, and which
steps are skipped. `Rules` holds what a negative control gets wrong.
"""

import copy
import dataclasses
import math
from typing import Any

import torch

from oracle import step

CLIP_EPSILON = 1e-6


@dataclasses.dataclass
class Rules:
    aggregate: Any = step.aggregation
    advantages: Any = step.advantages
    clip_epsilon: float = CLIP_EPSILON
    old_weights_are_the_entry_weights: bool = True
    empty_steps_are_skipped: bool = True


@dataclasses.dataclass
class Outcome:
    """What one mini-batch came to."""

    outcome: str  # APPLIED, SKIPPED_EMPTY, SKIPPED_NONFINITE
    epoch: int
    loss: float
    norm: float  # of the gradient before the clip
    log_probs: dict  # by rollout_id, of what was run


def _reads_entry_weights(header):
    return any(header.get(key, {}).get("from") == "WEIGHTS" for key in ("old", "ref"))


class Trainer:
    """A model (hf64.Hf64) under training: its parameters change."""

    def __init__(self, model):
        self.model = model
        parameters = model.parameters()
        self._matrices = [p for p in parameters.values() if p.dim() == 2]
        self._others = [p for p in parameters.values() if p.dim() != 2]
        self._optimizer = torch.optim.AdamW([{"params": self._matrices}, {"params": self._others}], lr=0.0)

    def weights(self):
        return {name: p.detach().clone() for name, p in self.model.parameters().items()}

    def snapshot(self):
        return self.weights(), copy.deepcopy(self._optimizer.state_dict())

    def restore(self, snapshot):
        weights, optimizer = snapshot
        with torch.no_grad():
            for name, parameter in self.model.parameters().items():
                parameter.copy_(weights[name])
        self._optimizer.load_state_dict(copy.deepcopy(optimizer))

    def update(self, request, orders=None, rules=Rules(), applied_max=None):
        """[Outcome] of the request's steps. `orders`: as step.mini_batches has them. `applied_max`: ends behind so many that were
        applied, as a request that is cancelled does."""
        header = request["header"]
        keep_entry = _reads_entry_weights(header) and rules.old_weights_are_the_entry_weights
        entry = step.log_probs(self.model, request) if keep_entry else None
        advantage = rules.advantages(request)
        history = []
        for epoch, groups in step.mini_batches(request, orders):
            if applied_max is not None and sum(outcome.outcome == "APPLIED" for outcome in history) == applied_max:
                break
            result = step.run(self.model, request, groups, entry, rules.aggregate, advantage)
            norm = math.sqrt(sum(g.square().sum().item() for g in result.gradients.values()))
            outcome = "APPLIED"
            if not result.has_loss and rules.empty_steps_are_skipped:
                outcome = "SKIPPED_EMPTY"
            elif not math.isfinite(norm * norm):
                assert header["request"]["on_nonfinite"] == "SKIP"
                outcome = "SKIPPED_NONFINITE"
            else:
                self._apply(result.gradients, norm, header["adam"], rules)
            history.append(Outcome(outcome, epoch, result.loss, norm, result.log_probs))
        return history

    def _apply(self, gradients, norm, adam, rules):
        clip = 1.0
        if adam["max_grad_norm"] > 0:
            clip = min(1.0, adam["max_grad_norm"] / (norm + rules.clip_epsilon))
        for name, parameter in self.model.parameters().items():
            parameter.grad = gradients[name] * clip
        decays = (adam["weight_decay"], adam["weight_decay"] if adam.get("weight_decay_scope") == "ALL" else 0.0)
        for group, decay in zip(self._optimizer.param_groups, decays):
            group.update(lr=adam["learning_rate"], betas=(adam["beta1"], adam["beta2"]), eps=adam["eps"], weight_decay=decay)
        self._optimizer.step()


def train(model, request):
    """The weights after one request on a fresh optimizer, and its outcomes."""
    trainer = Trainer(model)
    history = trainer.update(request)
    return trainer.weights(), history
