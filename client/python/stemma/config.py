"""What a request asks for: loss, optimizer, learning-rate schedules. Nothing is hidden: a preset is a LossConfig whose repr
shows every field that will be sent, and a field that is None is not sent (the server has no silent defaults)."""

import dataclasses
import math
from typing import Optional

from . import _proto


@dataclasses.dataclass(frozen=True)
class LossConfig:
    loss_mode: str
    loss_agg_mode: str = "token-mean"
    temperature: float = 1.0
    clip_ratio_low: Optional[float] = None
    clip_ratio_high: Optional[float] = None
    clip_ratio_c: Optional[float] = None
    loss_scale_factor: Optional[float] = None
    kl_loss_coef: Optional[float] = None
    kl_loss_type: Optional[str] = None
    entropy_coeff: Optional[float] = None
    normalize_advantage_std: Optional[bool] = None

    def as_dict(self):
        return _sent_fields(self)


@dataclasses.dataclass(frozen=True)
class AdamW:
    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    weight_decay_scope: Optional[str] = "ALL"
    max_grad_norm: float = 1.0

    def as_dict(self):
        return _sent_fields(self)


def _sent_fields(config):
    return {k: v for k, v in dataclasses.asdict(config).items() if v is not None}


# Presets. Each takes any LossConfig field as a keyword, e.g. grpo(kl_loss_coef=1e-3, kl_loss_type="low_var_kl").

def grpo(**fields):
    """Clipped policy gradient, token mean over the mini-batch, advantages normalised by the group's deviation."""
    return dataclasses.replace(LossConfig("vanilla", clip_ratio_low=0.2, clip_ratio_high=0.2,
                                          normalize_advantage_std=True), **fields)


def dr_grpo(loss_scale_factor, **fields):
    """GRPO without the two normalisations: token sums over a constant, A = reward - mean."""
    return grpo(**{"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": loss_scale_factor,
                   "normalize_advantage_std": False, **fields})


def dapo(**fields):
    """GRPO with the wider upper clip."""
    return grpo(**{"clip_ratio_high": 0.28, **fields})


def gspo(**fields):
    """One ratio per response (its geometric mean), each response counted once."""
    return dataclasses.replace(LossConfig("gspo", "seq-mean-token-mean", clip_ratio_low=3e-4, clip_ratio_high=4e-4,
                                          normalize_advantage_std=True), **fields)


def cispo(**fields):
    """Clipped importance weights without gradient; every token keeps its own."""
    return dataclasses.replace(LossConfig("cispo", clip_ratio_low=0.2, clip_ratio_high=0.2,
                                          normalize_advantage_std=True), **fields)


def importance_sampling(**fields):
    """-r * A, unclipped, summed over tokens."""
    return dataclasses.replace(LossConfig("importance_sampling", "token-sum", normalize_advantage_std=True), **fields)


def reinforce(**fields):
    """-A * log-prob; needs no old log-probs (send old=None)."""
    return dataclasses.replace(LossConfig("gpg", normalize_advantage_std=True), **fields)


def cross_entropy(**fields):
    """-weight * log-prob: supervised training (loss_weights are ones unless sent; send old=None)."""
    return dataclasses.replace(LossConfig("cross_entropy"), **fields)


def adamw(learning_rate, **fields):
    """AdamW; the fields are AdamW's. Without weight decay no scope is sent."""
    adam = dataclasses.replace(AdamW(learning_rate), **fields)
    return adam if adam.weight_decay else dataclasses.replace(adam, weight_decay_scope=None)


# Schedules: step 0, 1, ... -> learning rate. The client has them because it alone knows the total.

def constant(learning_rate, warmup_steps=0):
    return lambda step: learning_rate * _warmup(step, warmup_steps)


def linear(learning_rate, total_steps, warmup_steps=0, min_lr_ratio=0.0):
    """Rises over the warm-up, then falls to min_lr_ratio * learning_rate at total_steps."""
    return _decaying(learning_rate, total_steps, warmup_steps, min_lr_ratio, lambda done: 1.0 - done)


def cosine(learning_rate, total_steps, warmup_steps=0, min_lr_ratio=0.0):
    """Rises over the warm-up, then falls along half a cosine to min_lr_ratio * learning_rate at total_steps."""
    return _decaying(learning_rate, total_steps, warmup_steps, min_lr_ratio,
                     lambda done: 0.5 * (1.0 + math.cos(math.pi * done)))


def _decaying(learning_rate, total_steps, warmup_steps, min_lr_ratio, shape):
    def at(step):
        if step < warmup_steps:
            return learning_rate * _warmup(step, warmup_steps)
        done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
        return learning_rate * (min_lr_ratio + (1.0 - min_lr_ratio) * shape(done))
    return at


def _warmup(step, warmup_steps):
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


# Into messages.

_SOURCES = {"policy": "WEIGHTS", "client": "CLIENT", "rollout": "ROLLOUT", "on_policy": "ON_POLICY"}


def fill_message(message, fields):
    """Sets a message's fields from a dict in the trace's names: enums by name, nested messages as dicts."""
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise ValueError(f"{message.DESCRIPTOR.name} has no field {name!r}")
        if field.message_type is not None:
            getattr(message, name).SetInParent()
            fill_message(getattr(message, name), value)
        elif field.enum_type is not None:
            setattr(message, name, _proto.enum_number(field.enum_type.full_name, value))
        else:
            setattr(message, name, value)
    return message


def source(name):
    """LogProbSource fields of "policy" (one pass of the entry weights), "client", "rollout", "on_policy"."""
    if name not in _SOURCES:
        raise ValueError(f"log-probs come from {name!r}? one of {', '.join(map(repr, _SOURCES))}, or None")
    return {"from": _SOURCES[name], **({"weights": "policy"} if name == "policy" else {})}
