"""What a request asks for: loss and optimizer.

Nothing is hidden: a preset is a LossConfig whose repr shows every field that will be sent, and a field that is None is not
sent (the server has no silent defaults). `old="auto"` is the one field that depends on the request; resolve_old says how.
"""

import dataclasses
import numbers
import operator
import sys
import uuid
from typing import Any, Optional

from . import _arrays, _proto


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """A loss; docs/losses.md has the formulas and what each mode needs and reads.

    loss_mode           "vanilla" (PPO), "gspo", "cispo", "importance_sampling", "cross_entropy", "gpg"
    loss_agg_mode       "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean",
                        "prompt-mean"
    temperature         divides the logits, in log-probs and gradient
    clip_ratio_low      the ratio is clipped to [1 - clip_ratio_low, 1 + clip_ratio_high]
    clip_ratio_high     see clip_ratio_low
    clip_ratio_c        vanilla's dual clip, above 1; None: off
    loss_scale_factor   seq-mean-token-sum-norm's divisor
    kl_loss_coef        weight of a KL term against the reference; None: no KL term
    kl_loss_type        "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", each also with a trailing "+"
    entropy_coeff       weight of an entropy bonus
    normalize_advantage_std     whether advantages made from rewards are divided by the group's deviation
    old                 where old log-probs come from: "auto", "client", "rollout", "policy", "checkpoint:NAME",
                        "on_policy"; None: the mode reads none. See Client.submit
    """

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
    old: Optional[str] = "auto"

    def as_dict(self):
        """The fields of the loss message that are sent. `old` travels beside it."""
        fields = _sent_fields(self)
        fields.pop("old", None)
        return fields


@dataclasses.dataclass(frozen=True)
class AdamW:
    """AdamW's numbers for the steps of one request; schedules live in the client.

    learning_rate       of every step of the request
    beta1, beta2        decay of the moments
    eps                 added to the root of the second moment
    weight_decay        decoupled
    weight_decay_scope  "ALL" parameters, as torch does, or "MATRICES" only; None without weight decay
    max_grad_norm       gradients are clipped to it; 0: not at all
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    weight_decay_scope: Optional[str] = "ALL"
    max_grad_norm: float = 1.0

    def as_dict(self):
        """The fields that are sent."""
        return _sent_fields(self)


def _sent_fields(config):
    return {k: v for k, v in dataclasses.asdict(config).items() if v is not None}


# Presets. Each takes any LossConfig field as a keyword.

def grpo(**fields: Any) -> LossConfig:
    """Clipped policy gradient, token mean over the mini-batch, advantages normalised by the group's deviation. DeepSeekMath's GRPO
    is grpo(loss_agg_mode="seq-mean-token-mean"); verl's has a dual clip, grpo(clip_ratio_c=3.0).

    fields      LossConfig fields that differ, e.g. grpo(kl_loss_coef=1e-3, kl_loss_type="low_var_kl")
    """
    return dataclasses.replace(LossConfig("vanilla", clip_ratio_low=0.2, clip_ratio_high=0.2,
                                          normalize_advantage_std=True), **fields)


def dr_grpo(loss_scale_factor: float, **fields: Any) -> LossConfig:
    """GRPO without the two normalisations: token sums over a constant, A = reward - mean.

    loss_scale_factor   the constant, e.g. the longest response that is sampled
    fields      LossConfig fields that differ
    """
    return grpo(**{"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": loss_scale_factor,
                   "normalize_advantage_std": False, **fields})


def dapo(**fields: Any) -> LossConfig:
    """GRPO with the wider upper clip. verl's has a dual clip, dapo(clip_ratio_c=3.0).

    fields      LossConfig fields that differ
    """
    return grpo(**{"clip_ratio_high": 0.28, **fields})


def gspo(**fields: Any) -> LossConfig:
    """One ratio per response (its geometric mean), each response counted once.

    fields      LossConfig fields that differ
    """
    return dataclasses.replace(LossConfig("gspo", "seq-mean-token-mean", clip_ratio_low=3e-4, clip_ratio_high=4e-4,
                                          normalize_advantage_std=True), **fields)


def cispo(**fields: Any) -> LossConfig:
    """Importance weights without gradient, clipped from above; every token keeps its own. As in MiniMax-M1, no ratio is clipped
    from below: none is under 0. verl's generic clip_ratio_low of 0.2 is a lower bound of 0.8.

    fields      LossConfig fields that differ
    """
    return dataclasses.replace(LossConfig("cispo", clip_ratio_low=1.0, clip_ratio_high=0.2,
                                          normalize_advantage_std=True), **fields)


def importance_sampling(**fields: Any) -> LossConfig:
    """-r * A, unclipped, summed over tokens.

    fields      LossConfig fields that differ
    """
    return dataclasses.replace(LossConfig("importance_sampling", "token-sum", normalize_advantage_std=True), **fields)


def reinforce(**fields: Any) -> LossConfig:
    """-A * log-prob; reads no old log-probs.

    fields      LossConfig fields that differ
    """
    return dataclasses.replace(LossConfig("gpg", normalize_advantage_std=True, old=None), **fields)


def cross_entropy(**fields: Any) -> LossConfig:
    """-weight * log-prob: supervised training. loss_weights are ones unless sent; reads no old log-probs.

    fields      LossConfig fields that differ
    """
    return dataclasses.replace(LossConfig("cross_entropy", old=None), **fields)


def adamw(learning_rate: Any, **fields: Any) -> AdamW:
    """An AdamW. Without weight decay no scope is sent.

    learning_rate   of every step of the request
    fields      AdamW fields that differ
    """
    adam = dataclasses.replace(AdamW(learning_rate), **fields)
    return adam if adam.weight_decay else dataclasses.replace(adam, weight_decay_scope=None)


def whole(name, value, least=0):
    """The value, which counts, as Python's own whole number: a sum of numpy's small ones would wrap."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} is {_arrays.shown(value)}: pass a whole number from {least} on")
    return int(value)


# Into messages.

_SOURCES = {"policy": "WEIGHTS", "client": "CLIENT", "rollout": "ROLLOUT", "on_policy": "ON_POLICY"}
_CHECKPOINT = "checkpoint:"
_MODES_WITHOUT_OLD = ("cross_entropy", "gpg")
_COUNTS = ("ppo_mini_batch_size", "ppo_epochs")  # the server refuses 0 of them


def loss_fields(loss):
    """(fields of the loss message, its `old`) of a LossConfig or a dict."""
    if isinstance(loss, dict):
        fields = without_none(loss)
        return fields, fields.pop("old", "auto")
    if isinstance(loss, LossConfig):
        return loss.as_dict(), loss.old
    raise ValueError(_refusal("loss", loss, "a preset such as loss=stemma.grpo(), a stemma.LossConfig or a dict"))


def adam_fields(adam):
    """Fields of the optimizer's message of an AdamW or a dict."""
    if isinstance(adam, dict):
        return without_none(adam)
    if isinstance(adam, AdamW):
        return adam.as_dict()
    is_rate = isinstance(adam, float)
    raise ValueError(_refusal("adam", adam, f"adam=stemma.adamw({adam if is_rate else '1e-6'})"))


def resolve_old(loss_mode, old, with_old, with_rollout, num_steps):
    """What `old="auto"` means for a request: nothing where the mode reads none, else the log-probs that the rollouts carry,
    else the policy's own: "on_policy" for one optimizer step, where that is the same and saves a pass, "policy" for more.
    with_old, with_rollout: paths of the first rollouts that carry old_log_probs, rollout_log_probs; None: no rollout does."""
    if old != "auto":
        return old
    if loss_mode in _MODES_WITHOUT_OLD:
        return None
    if with_old and with_rollout:
        who = f"{with_old} carries both old_log_probs and" if with_old == with_rollout else \
            f"{with_old} carries old_log_probs and {with_rollout}"
        raise ValueError(f"{who} rollout_log_probs, and a loss reads one of them: set the other to None in every Rollout (whose "
                         "ratio, where you correct for the rollout engine by it, goes into rollout_is_weights)")
    if with_old:
        return "client"
    if with_rollout:
        return "rollout"
    return "on_policy" if num_steps == 1 else "policy"


def fill_message(message, fields, path="", names=None):
    """Sets a message's fields from a dict in the trace's names: enums by name, nested messages as dicts. names: what errors call
    a field, by its path, where that is not the path itself."""
    names = names or {}
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            known = ", ".join(f.name for f in message.DESCRIPTOR.fields)
            raise ValueError(f"{message.DESCRIPTOR.name} has no field {name!r}; there are {known}")
        where = names.get(f"{path}{name}", f"{path}{name}")
        if field.message_type is not None:
            if not isinstance(value, dict):
                raise ValueError(f"{where} is {value!r:.60}: pass a dict in the trace's field names")
            getattr(message, name).SetInParent()
            fill_message(getattr(message, name), value, f"{path}{name}.", names)
        elif field.enum_type is not None:
            try:
                setattr(message, name, _proto.enum_number(field.enum_type.full_name, value))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
        else:
            _set_scalar(message, field, value, where)
    return message


def _set_scalar(message, field, value, path):
    """Numpy scalars and tensors of one element are numbers too; True and False are none."""
    is_bool = _is_bool(value)
    try:
        if (is_bool and field.type != field.TYPE_BOOL) or _arrays.is_masked(value):
            raise TypeError
        if field.type == field.TYPE_DOUBLE and not isinstance(value, str):
            value = float(value)
        elif hasattr(value, "__index__") and field.type not in (field.TYPE_BOOL, field.TYPE_STRING):
            value = operator.index(value)
        elif is_bool:
            value = bool(value)
        setattr(message, field.name, value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        number = f"a number of at most {sys.float_info.max:g}" if isinstance(error, OverflowError) else "a number"
        whole = f"a whole number from {1 if field.name in _COUNTS else 0} to"
        wanted = {field.TYPE_DOUBLE: number, field.TYPE_STRING: "a string", field.TYPE_BOOL: "True or False",
                  field.TYPE_UINT32: f"{whole} {2**32 - 1}", field.TYPE_UINT64: f"{whole} {2**64 - 1}"}
        raise ValueError(f"{path} is {_arrays.shown(value)}: pass {wanted[field.type]}") from None


def source(name):
    """LogProbSource fields of "policy" (one pass of the entry weights), "checkpoint:NAME" (one of a checkpoint's),
    "client", "rollout", "on_policy"; a dict in the trace's names is those fields."""
    if isinstance(name, dict):
        return without_none(name)
    if isinstance(name, str) and name.startswith(_CHECKPOINT) and name != _CHECKPOINT:
        return {"from": "WEIGHTS", "weights": name[len(_CHECKPOINT):]}
    if not isinstance(name, str) or name not in _SOURCES:
        known = [*_SOURCES, _CHECKPOINT + "NAME"]
        raise ValueError(f"log-probs come from {name!r:.60}? one of {', '.join(map(repr, known))}, or None")
    return {"from": _SOURCES[name], **({"weights": "policy"} if name == "policy" else {})}


def weights(name):
    """The name of the weights that log-probs are computed under, as the wire has it. A checkpoint may also be named as `old` and
    `ref` name one."""
    is_prefixed = isinstance(name, str) and name.startswith(_CHECKPOINT) and name != _CHECKPOINT
    return name[len(_CHECKPOINT):] if is_prefixed else name


def _refusal(name, value, wanted):
    if value is None:
        return f"{name} is required: pass {wanted}"
    if callable(value):
        return f"{name} is the function {getattr(value, '__name__', value)}: call it, {wanted}"
    return f"{name} is {value!r:.60}: pass {wanted}"


def new_id():
    """A request_id that nobody had."""
    return f"py-{uuid.uuid4()}"


def without_none(fields):
    return {k: v for k, v in fields.items() if v is not None}


def checked_text(name, value):
    """The value, which a call takes as the name of something."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {value!r}: pass a string that is not empty")
    return value


def checked_truth(name, value):
    """The value as a bool; numpy's is one too."""
    if not _is_bool(value):
        raise ValueError(f"{name} is {value!r:.60}: pass True or False")
    return bool(value)


def _is_bool(value):
    return type(value).__name__ in ("bool", "bool_")
