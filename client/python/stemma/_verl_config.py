"""What every key of verl's actor configuration means for an update of Stemma: taken, dropped, or refused by name; and what
verl's trainer does to the actor's update by keys that lie elsewhere.

The tables are data: docs/verl.md shows them, a test holds both to verl's own configuration classes.
"""

import dataclasses
import math
from typing import Any, Dict, Optional

from .config import AdamW, LossConfig

LOSS_MODES = ("vanilla", "gspo", "cispo", "gpg")
LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
KL_LOSS_TYPES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")

# Keys of verl's actor configuration that the update is made of; "a.b" is key b of section a.
TAKEN = {
    "clip_ratio": "where clip_ratio_low or clip_ratio_high is null",
    "clip_ratio_low": "of vanilla, gspo, cispo",
    "clip_ratio_high": "of vanilla, gspo, cispo",
    "clip_ratio_c": "of vanilla, which always has a dual clip in verl",
    "policy_loss.loss_mode": "vanilla, gspo, cispo, gpg; others are refused",
    "loss_agg_mode": "as named",
    "loss_scale_factor": "of seq-mean-token-sum-norm; null: data.max_response_length",
    "use_kl_loss": "whether there is a KL term",
    "kl_loss_coef": "with use_kl_loss",
    "kl_loss_type": "with use_kl_loss; \"full\" is refused",
    "entropy_coeff": "as named",
    "calculate_entropy": "reports actor/entropy_loss of all tokens, with a coefficient of 0",
    "ppo_mini_batch_size": "prompts, so groups, of an optimizer step",
    "ppo_epochs": "as named",
    "shuffle": "mini-batches are drawn in another order than verl's own",
    "data_loader_seed": "the seed of shuffle",
    "rollout_n": "checks that mini-batches of groups are those of rows",
    "optim.lr": "the rate that learning_rate(step) starts from",
    "optim.betas": "as named",
    "optim.weight_decay": "on every parameter, as torch does",
    "optim.clip_grad": "max_grad_norm; 0 is refused, by which verl's gradient is 0",
    "optim.grad_clip": "verl's deprecated name of clip_grad",
    "optim.lr_scheduler_type": "constant or cosine, in learning_rate(step)",
    "optim.warmup_style": "verl's deprecated name of lr_scheduler_type",
    "optim.lr_warmup_steps": "in learning_rate(step)",
    "optim.lr_warmup_steps_ratio": "in learning_rate(step)",
    "optim.total_training_steps": "in learning_rate(step)",
    "optim.min_lr_ratio": "in learning_rate(step)",
    "optim.num_cycles": "in learning_rate(step)",
    "optim.zero_indexed_step": "in learning_rate(step)",
    "optim.optimizer": "AdamW, and Adam without weight decay, which is the same; others are refused",
    "optim.optimizer_impl": "torch.optim; others are refused",
    "optim.override_optimizer_config": "eps, betas and weight_decay; others are refused",
}

_PLACEMENT = "how verl places its own training; Stemma plans by its server's memory budget"
_OTHER_LOSS = "read by a loss mode that is refused, so never here"

# Keys that have no meaning here, and why.
DROPPED = {
    "strategy": _PLACEMENT, "ppo_micro_batch_size": _PLACEMENT, "ppo_micro_batch_size_per_gpu": _PLACEMENT,
    "ppo_infer_micro_batch_size_per_gpu": _PLACEMENT, "use_dynamic_bsz": _PLACEMENT, "ppo_max_token_len_per_gpu": _PLACEMENT,
    "ppo_infer_max_token_len_per_gpu": _PLACEMENT, "use_torch_compile": _PLACEMENT, "use_fused_kernels": _PLACEMENT,
    "use_remove_padding": _PLACEMENT, "pad_to_length": _PLACEMENT, "ulysses_sequence_parallel_size": _PLACEMENT,
    "entropy_from_logits_with_chunking": _PLACEMENT, "entropy_from_logits_chunk_size": _PLACEMENT,
    "entropy_checkpointing": _PLACEMENT, "fsdp_config": _PLACEMENT, "megatron": _PLACEMENT, "veomni": _PLACEMENT,
    "torchtitan": _PLACEMENT, "engine": _PLACEMENT, "model_config": "the server's model is its own", "profile": _PLACEMENT,
    "profiler": _PLACEMENT, "use_prefix_grouper": "prefix reuse is what Stemma does by itself",
    "checkpoint": "weights leave by client.export", "global_batch_info": "verl's own notes while it runs",
    "grad_clip": "verl's engines read optim.clip_grad", "tau_pos": _OTHER_LOSS, "tau_neg": _OTHER_LOSS,
    "use_rollout_log_probs": "verl 0.9 reads it nowhere; rollout_is_weights of the batch are taken",
    "policy_loss.clip_cov_ratio": _OTHER_LOSS, "policy_loss.clip_cov_lb": _OTHER_LOSS, "policy_loss.clip_cov_ub": _OTHER_LOSS,
    "policy_loss.kl_cov_ratio": _OTHER_LOSS, "policy_loss.ppo_kl_coef": _OTHER_LOSS, "policy_loss.dro_beta": _OTHER_LOSS,
    "policy_loss.rollout_correction": "applied by verl's trainer, whose rollout_is_weights are taken from the batch; refused "
                                      "with bypass_mode",
    "_target_": "names verl's own class", "_mutable_fields": "verl's own", "extra": "verl's own",
    "policy_loss._target_": "names verl's own class", "optim._target_": "names verl's own class",
    "optim._mutable_fields": "verl's own", "policy_loss._mutable_fields": "verl's own",
}

# Keys that would change the training and that Stemma does not have: refused where they are on. Those of sections also in the
# sections of DROPPED, where verl's engines read them: "fsdp_config.qat.enable".
REFUSED = {
    "calculate_sum_pi_squared": "the sum of squared probabilities is not computed",
    "freeze_vision_tower": "there are no vision models",
    "qat.enable": "there is no quantization-aware training",
    "router_replay.mode": "there is no replay of routing",
}

# The same for keys outside of the actor's section.
_LORA = "there are no adapters: every weight is trained"
_CONFIG = "Stemma trains what config.json beside the weights says; write it there"
_BYPASS = "algorithm.rollout_correction.bypass_mode"
REFUSED_OUTSIDE = {
    _BYPASS: "in its first step verl's legacy trainer then replaces the actor's loss by one that Stemma does not have; the V1 "
             "trainer (trainer.use_v1) keeps the loss, and is taken",
    "distillation.enabled": "there is no distillation loss",
    "actor_rollout_ref.model.lora_rank": _LORA,
    "actor_rollout_ref.model.lora_adapter_path": _LORA,
    "actor_rollout_ref.model.lora.rank": _LORA,
    "actor_rollout_ref.model.hf_config_path": _CONFIG,
    "actor_rollout_ref.model.override_config": _CONFIG,
    "actor_rollout_ref.model.mtp.enable": "there is no prediction of several tokens",
    "actor_rollout_ref.model.mtp.enable_train": "there is no prediction of several tokens",
}
# What override_config may say all the same: it changes no log-prob of the models that Stemma has.
_OVERRIDES_WITHOUT_EFFECT = ("attn_implementation", "_attn_implementation", "use_cache", "bos_token_id", "eos_token_id",
                             "pad_token_id")
_ADVICE = {
    _BYPASS: "; set it to False, by which the batch has old_log_probs and rollout_is_weights, "
             "or make the loss by hand (docs/verl.md, \"Is it the same loss?\")",
}
_OFF = (None, False, 0, "disabled")
_REFUSED_SECTIONS = ("qat", "router_replay")
_SECTIONS = ("policy_loss", "optim", *_REFUSED_SECTIONS)


@dataclasses.dataclass
class ActorUpdate:
    """What verl's actor configuration means for client.update_actor.

    loss        the LossConfig
    adam        the AdamW; its learning rate is that of step 0
    mini_batch  groups per optimizer step
    epochs      passes over the groups
    shuffle     whether mini-batches are drawn anew in each epoch
    seed        of shuffle, else None
    rollout_n   rollouts of each prompt, None if the configuration does not say
    schedule    what learning_rate(step) is made of
    dropped     {key: why} of the keys that were there and have no meaning here
    """

    loss: LossConfig
    adam: AdamW
    mini_batch: Optional[int]
    epochs: int
    shuffle: bool
    seed: Optional[int]
    rollout_n: Optional[int]
    schedule: Dict[str, Any]
    dropped: Dict[str, str]

    def learning_rate(self, step) -> float:
        """The rate by verl's schedule: one for all optimizer steps of an update.

        step        the actor's updates before this one: verl's global_steps - max(1, trainer.critic_warmup)
        """
        if step < 0:
            raise ValueError(f"step is {step}: it is verl's global_steps - max(1, trainer.critic_warmup), and verl skips "
                             "the actor's update where that is below 0")
        s = self.schedule
        step += 0 if s["zero_indexed_step"] or s["type"] == "constant" else 1
        if step < s["warmup_steps"]:
            return s["lr"] * step / s["warmup_steps"]
        if s["type"] == "constant":
            return s["lr"]
        progress = (step - s["warmup_steps"]) / max(1, s["total_steps"] - s["warmup_steps"])
        wave = math.cos(math.pi * s["num_cycles"] * 2.0 * progress)
        low = s["min_lr_ratio"]
        return s["lr"] * max(low, wave * (1 - low) * 0.5 + (1 + low) * 0.5)

    def arguments(self, step=0):
        """Keyword arguments of client.update_actor; `old` and `ref` follow what the groups carry. A step whose gradient is not
        finite is skipped, as verl does.

        step        the actor's updates before this one: verl's global_steps - max(1, trainer.critic_warmup)
        """
        return {"loss": self.loss, "adam": dataclasses.replace(self.adam, learning_rate=self.learning_rate(step)),
                "mini_batch": self.mini_batch, "epochs": self.epochs, "shuffle": self.shuffle, "seed": self.seed,
                "on_nonfinite": "skip"}


def loss_from_config(config) -> ActorUpdate:
    """An ActorUpdate of the configuration of verl's trainer (an OmegaConf node or a dict; its sections may be dataclasses). Read
    are actor_rollout_ref.actor, of which a key that is not known is refused by its name, actor_rollout_ref.rollout.temperature,
    data.max_response_length, and what would make the actor's update another one: algorithm.rollout_correction.bypass_mode,
    distillation.enabled, and of actor_rollout_ref.model LoRA, mtp, and another configuration of the model.

    config      all of it, as verl's trainer has it in self.config
    """
    actor = _needed(config, "actor_rollout_ref.actor")
    _needed(config, "algorithm")
    keeps_loss = _at(config, "trainer.use_v1") is True
    for name in REFUSED_OUTSIDE:
        if not (name == _BYPASS and keeps_loss):
            _refuse(name, _with_effect(name, _at(config, name)), REFUSED_OUTSIDE[name])
    keys, dropped = _read_keys(_plain(actor))
    mode = keys.get("policy_loss.loss_mode") or "vanilla"
    if mode not in LOSS_MODES:
        raise ValueError(f"actor.policy_loss.loss_mode is {mode!r}: Stemma has {', '.join(LOSS_MODES)}")
    temperature = _at(config, "actor_rollout_ref.rollout.temperature")
    scale = _scale(keys, _at(config, "data.max_response_length"))
    loss = LossConfig(mode, _agg_mode(keys), 1.0 if temperature is None else float(temperature), **_clip(mode, keys), **scale,
                      **_kl(keys), **_entropy(keys), old=None if mode == "gpg" else "auto")
    shuffle = bool(keys.get("shuffle", False))
    return ActorUpdate(loss, _adam(keys), keys.get("ppo_mini_batch_size"), keys.get("ppo_epochs", 1), shuffle,
                       keys.get("data_loader_seed") if shuffle else None, keys.get("rollout_n"), _schedule(keys), dropped)


def _at(config, path):
    """The value of "a.b.c", None where there is none. What OmegaConf calls missing is none."""
    for key in path.split("."):
        if dataclasses.is_dataclass(config):
            config = getattr(config, key, None)
        else:
            config = config[key] if hasattr(config, "keys") and key in config else None
    return config


def _needed(config, path):
    section = _at(config, path)
    if section is None:
        raise ValueError(f"the configuration has no {path}: pass the whole one of verl's trainer (its self.config), not a section "
                         "of it, because the trainer changes the actor's update by keys of other sections")
    return section


def _refuse(name, value, why):
    if value not in _OFF:
        raise ValueError(f"{name} is {value!r}: {why}{_ADVICE.get(name, '')}")


def _with_effect(name, value):
    """The value; of override_config what changes the model, None where nothing does."""
    if not name.endswith(".override_config"):
        return value
    overrides = dict(_plain(value) or {})
    overrides.update(overrides.pop("model_config", None) or {})
    return {key: other for key, other in overrides.items()
            if key not in _OVERRIDES_WITHOUT_EFFECT and not (key.endswith("dropout") and other in _OFF)} or None


def _plain(config):
    """Nested dicts of a mapping, an OmegaConf node or a dataclass; what OmegaConf calls missing is left out."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if hasattr(config, "keys"):
        out = {}
        for key in config.keys():
            try:
                out[str(key)] = _plain(config[key])
            except Exception as error:  # omegaconf's, which is not imported here
                if type(error).__name__ != "MissingMandatoryValue":
                    raise
        return out
    return config


def _read_keys(config):
    """(values of TAKEN keys by name, {key: why} of the dropped ones). ValueError names what is refused or not known."""
    keys, dropped = {}, {}
    for name, value in _flat(config):
        if name in TAKEN:
            if value not in (None, "???"):
                keys[name] = value
        elif name in DROPPED:
            _check_dropped(name, value)
            dropped[name] = DROPPED[name]
        elif name in REFUSED:
            _refuse(f"actor.{name}", value, REFUSED[name])
            dropped[name] = "off"
        elif name.partition(".")[0] in _REFUSED_SECTIONS:
            dropped[name] = "of a section that is off"
        else:
            raise ValueError(f"actor.{name} is not known: Stemma reads verl 0.9's actor configuration; if this key does not "
                             "change the update, leave it out of what is passed")
    return keys, dropped


def _check_dropped(name, value):
    """Refuses what a section that has no meaning here holds, and what would change the training nevertheless."""
    if name == "policy_loss.rollout_correction":
        _refuse(f"actor.{name}.bypass_mode", _at(value, "bypass_mode"), REFUSED_OUTSIDE[_BYPASS] + _ADVICE[_BYPASS])
    for key, why in REFUSED.items():
        if "." in key:
            _refuse(f"actor.{name}.{key}", _at(value, key), why)


def _flat(config):
    for name, value in config.items():
        if value is None and name in _SECTIONS:
            continue
        if isinstance(value, dict) and name in _SECTIONS:
            for inner, inner_value in value.items():
                yield f"{name}.{inner}", inner_value
        else:
            yield name, value


def _agg_mode(keys):
    mode = keys.get("loss_agg_mode", "token-mean")
    if mode not in LOSS_AGG_MODES:
        raise ValueError(f"actor.loss_agg_mode is {mode!r}: verl 0.9 has {', '.join(LOSS_AGG_MODES)}")
    return mode


def _clip(mode, keys):
    if mode == "gpg":
        return {}
    both = keys.get("clip_ratio", 0.2)
    out = {"clip_ratio_low": keys.get("clip_ratio_low", both), "clip_ratio_high": keys.get("clip_ratio_high", both)}
    return {**out, "clip_ratio_c": keys.get("clip_ratio_c", 3.0)} if mode == "vanilla" else out


def _scale(keys, response_length):
    if _agg_mode(keys) != "seq-mean-token-sum-norm":
        return {}
    factor = keys.get("loss_scale_factor", response_length)
    if factor is None:
        raise ValueError("actor.loss_scale_factor is null, which means the padded response length in verl: set it, or "
                         "data.max_response_length of the configuration")
    return {"loss_scale_factor": float(factor)}


def _kl(keys):
    if not keys.get("use_kl_loss", False):
        return {}
    kind = keys.get("kl_loss_type", "low_var_kl")
    if kind.rstrip("+") not in KL_LOSS_TYPES or kind.count("+") > 1:
        raise ValueError(f"actor.kl_loss_type is {kind!r}: Stemma has {', '.join(KL_LOSS_TYPES)}, each also with a trailing +")
    return {"kl_loss_coef": float(keys.get("kl_loss_coef", 0.001)), "kl_loss_type": kind}


def _entropy(keys):
    coefficient = float(keys.get("entropy_coeff", 0.0))
    return {"entropy_coeff": coefficient} if coefficient or keys.get("calculate_entropy", False) else {}


def _adam(keys):
    name = keys.get("optim.optimizer", "AdamW")
    if name.lower() not in ("adamw", "adam"):
        raise ValueError(f"actor.optim.optimizer is {name!r}: Stemma has AdamW")
    if keys.get("optim.optimizer_impl", "torch.optim") != "torch.optim":
        raise ValueError(f"actor.optim.optimizer_impl is {keys['optim.optimizer_impl']!r}: Stemma has torch.optim's AdamW")
    override = dict(keys.get("optim.override_optimizer_config") or {})
    beta1, beta2 = override.pop("betas", keys.get("optim.betas", (0.9, 0.999)))
    decay = float(override.pop("weight_decay", keys.get("optim.weight_decay", 0.01)))
    eps = float(override.pop("eps", 1e-8))
    if name.lower() == "adam" and decay:
        raise ValueError(f"actor.optim.optimizer is {name!r} with a weight_decay of {decay}, which it adds to the gradient: Stemma "
                         "has AdamW; set weight_decay to 0, or the optimizer to AdamW")
    if override:
        raise ValueError(f"actor.optim.override_optimizer_config has {', '.join(override)}: Stemma reads eps, betas, weight_decay")
    norm = float(keys.get("optim.grad_clip", keys.get("optim.clip_grad", 1.0)))
    if not norm > 0:
        raise ValueError(f"actor.optim.clip_grad is {norm}: verl scales the gradient to that norm; set one above 0 (a large one, such "
                         "as 1e9, clips nothing)")
    return AdamW(float(keys.get("optim.lr", 1e-3)), float(beta1), float(beta2), eps, decay, "ALL" if decay else None, norm)


def _schedule(keys):
    kind = keys.get("optim.warmup_style", keys.get("optim.lr_scheduler_type", "constant"))
    if kind not in ("constant", "cosine"):
        raise ValueError(f"actor.optim.lr_scheduler_type is {kind!r}: verl 0.9 has constant and cosine")
    total = keys.get("optim.total_training_steps", -1)
    if kind == "cosine" and total <= 0:
        raise ValueError(f"actor.optim.total_training_steps is {total}: the cosine schedule needs it")
    warmup = keys.get("optim.lr_warmup_steps", -1)
    if warmup <= 0:
        ratio = keys.get("optim.lr_warmup_steps_ratio", 0.0)
        if ratio > 0 and total <= 0:
            raise ValueError(f"actor.optim.total_training_steps is {total}: lr_warmup_steps_ratio {ratio} is a share of it; verl's "
                             "trainer fills it in before it trains")
        warmup = int(ratio * total) if ratio > 0 else 0
    return {"type": kind, "lr": float(keys.get("optim.lr", 1e-3)), "warmup_steps": warmup, "total_steps": total,
            "min_lr_ratio": float(keys.get("optim.min_lr_ratio", 0.0)), "num_cycles": float(keys.get("optim.num_cycles", 0.5)),
            "zero_indexed_step": bool(keys.get("optim.zero_indexed_step", True))}
