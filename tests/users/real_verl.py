"""verl's own DataProto, configuration classes and loss functions. verl imports Ray, of which only the name is needed here."""

import dataclasses
import importlib.machinery
import sys
import types
import warnings

import stemma.verl


def _stub_ray():
    ray = types.ModuleType("ray")
    ray.__spec__ = importlib.machinery.ModuleSpec("ray", None)
    ray.ObjectRef = object
    ray.remote = lambda *args, **_: args[0] if args and callable(args[0]) else (lambda made: made)
    sys.modules.setdefault("ray", ray)


_stub_ray()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from verl import DataProto, __version__  # noqa: F401
    from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty  # noqa: F401
    from verl.utils import tensordict_utils  # noqa: F401
    from verl.utils.torch_functional import (get_constant_schedule_with_warmup,  # noqa: F401
                                             get_cosine_schedule_with_warmup)
    from verl.workers import config as configs


def actor_config(mode="vanilla", **fields):
    """verl's FSDPActorConfig, as its trainer makes it."""
    policy = configs.PolicyLossConfig(loss_mode=mode)
    return configs.FSDPActorConfig(**{"strategy": "fsdp", "rollout_n": 4, "ppo_micro_batch_size_per_gpu": 1, "policy_loss": policy,
                                      "optim": configs.FSDPOptimizerConfig(lr=1e-3), **fields})


def actor_keys():
    """Every key of every actor configuration of verl, sections that the update reads written out: {"optim.lr", ...}."""
    keys = set()
    for actor in (configs.FSDPActorConfig, configs.McoreActorConfig, configs.VeOmniActorConfig, configs.TorchTitanActorConfig):
        keys |= {f.name for f in dataclasses.fields(actor)}
    keys -= {"policy_loss", "optim", "qat"}
    keys |= {f"policy_loss.{f.name}" for f in dataclasses.fields(configs.PolicyLossConfig)}
    keys |= {f"optim.{f.name}" for f in dataclasses.fields(configs.FSDPOptimizerConfig)}
    return keys | {f"qat.{f.name}" for f in dataclasses.fields(configs.QATConfig)}


def whole_config(actor, temperature=1.0, **sections):
    """The configuration of verl's trainer, as far as the update reads it, around one of the actor."""
    return {"actor_rollout_ref": {"actor": actor, "rollout": {"temperature": temperature}}, "algorithm": {}, **sections}


def update_of(actor, temperature=1.0):
    """The ActorUpdate of an actor's configuration in that of a trainer."""
    return stemma.verl.loss_from_config(whole_config(actor, temperature))
