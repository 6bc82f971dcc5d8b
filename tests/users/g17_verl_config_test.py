"""G17: stemma.verl reads the whole configuration of verl's trainer: what its sections do to the actor's update is taken or
refused, over verl's own YAML, its own classes and the recipe of docs/verl.md."""

import copy
import pathlib
import re
import types

import pytest
import real_verl
import torch
import verl as installed
from g17_verl_test import RESPONSE_WIDTH, padded_batch
from omegaconf import OmegaConf
from real_verl import configs
from stemma import verl
from verl.trainer.config import RolloutCorrectionConfig
from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode
from verl.utils.transferqueue_utils import KVBatchMeta

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "verl.md").read_text()
YAML = pathlib.Path(installed.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml"


def trainers(**changes):
    """The configuration that verl's legacy trainer has in self.config, with changes by their dotted names."""
    config = OmegaConf.load(YAML)
    for name, value in {"actor_rollout_ref.rollout.n": 4, "trainer.use_v1": False, **changes}.items():
        OmegaConf.update(config, name, value)
    return config


def refused(config):
    with pytest.raises(ValueError) as error:
        verl.loss_from_config(config)
    return str(error.value)


def test_g17_verls_own_configuration_is_read_whole():
    update = verl.loss_from_config(trainers())
    assert (update.loss.temperature, update.mini_batch, update.rollout_n) == (1.0, 256, 4)
    update = verl.loss_from_config(trainers(**{
        "actor_rollout_ref.rollout.temperature": 0.5, "data.max_response_length": 77,
        "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum-norm"}))
    assert (update.loss.temperature, update.loss.loss_scale_factor) == (0.5, 77)
    assert verl.loss_from_config({"actor_rollout_ref": {"actor": {}}, "algorithm": {}}).loss.temperature == 1.0


def test_g17_a_section_is_not_the_configuration():
    """The loss of an actor's section alone would be another one where other sections change it."""
    config = trainers()
    assert refused(config.actor_rollout_ref.actor).startswith("the configuration has no actor_rollout_ref.actor: pass the whole")
    assert refused(real_verl.actor_config()).startswith("the configuration has no actor_rollout_ref.actor: pass the whole")
    assert refused({"actor_rollout_ref": config.actor_rollout_ref}).startswith("the configuration has no algorithm: pass the whole")


OUTSIDE = {"algorithm.rollout_correction.bypass_mode": True, "distillation.enabled": True, "actor_rollout_ref.model.lora_rank": 8,
           "actor_rollout_ref.model.lora_adapter_path": "/adapter", "actor_rollout_ref.model.lora.rank": 8,
           "actor_rollout_ref.model.hf_config_path": "/elsewhere", "actor_rollout_ref.model.override_config": {"rope_theta": 1e6},
           "actor_rollout_ref.model.mtp.enable": True, "actor_rollout_ref.model.mtp.enable_train": True}


@pytest.mark.parametrize("name, on", OUTSIDE.items())
def test_g17_what_changes_the_actors_update_from_outside_is_refused(name, on):
    off = OmegaConf.select(trainers(), name, throw_on_missing=True)  # verl's own name and default
    assert not off
    verl.loss_from_config(trainers(**{name: off}))
    assert refused(trainers(**{name: on})).startswith(f"{name} is {on!r}: {verl.REFUSED_OUTSIDE[name]}")
    assert set(OUTSIDE) == set(verl.REFUSED_OUTSIDE)


def test_g17_an_override_that_changes_no_log_prob_is_taken():
    """verl's recipes name the attention's implementation; what changes the model is refused, flat or under model_config."""
    name = "actor_rollout_ref.model.override_config"
    same = {"attn_implementation": "eager", "use_cache": False, "attention_dropout": 0.0, "model_config": {"eos_token_id": 3}}
    verl.loss_from_config(trainers(**{name: same}))
    for other in ({"rms_norm_eps": 0.1}, {"model_config": {"rope_theta": 1e6}}, {"attention_dropout": 0.5}):
        assert refused(trainers(**{name: {**same, **other}})).startswith(name + " is {")


def test_g17_bypass_mode_is_refused_before_verls_trainer_applies_it():
    """It does so in its first step, when an update that is made once is there already."""
    config = trainers(**{"algorithm.rollout_correction": {"bypass_mode": True, "loss_type": "reinforce"}})
    by_hand = copy.deepcopy(config)
    by_hand.algorithm.rollout_correction.bypass_mode = False
    before = refused(config)
    assert "set it to False" in before and "Is it the same loss?" in before and "## Is it the same loss?" in PAGE
    batch = padded_batch()
    batch.batch["rollout_log_probs"] = -torch.ones(len(batch), RESPONSE_WIDTH)
    apply_bypass_mode(batch=batch, rollout_corr_config=config.algorithm.rollout_correction,
                      policy_loss_config=config.actor_rollout_ref.actor.policy_loss)
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "bypass_mode"
    assert refused(config) == before
    config.algorithm.rollout_correction = {"bypass_mode": False}
    assert refused(config)  # by what the trainer left in the actor's section
    # The page's way to plain ppo_clip: vanilla over old_log_probs, which are the rollout's by then.
    assert verl.loss_from_config(by_hand).loss == verl.loss_from_config(trainers()).loss
    assert (batch.batch["old_log_probs"] == batch.batch["rollout_log_probs"]).all()


@pytest.mark.parametrize("correction, is_vanilla", [({}, True), ({"rollout_is": "token"}, True), ({"loss_type": "reinforce"}, False),
                                                    ({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.8_1.2"}, False)])
def test_g17_verls_bypass_mode_is_vanilla_as_the_page_says(correction, is_vanilla):
    made = RolloutCorrectionConfig(bypass_mode=True, **correction)
    config = real_verl.actor_config(policy_loss=configs.PolicyLossConfig(loss_mode="bypass_mode", rollout_correction=made))
    random = torch.Generator().manual_seed(17)
    old, now, advantages = (torch.randn(4, RESPONSE_WIDTH, generator=random) / 2 for _ in range(3))
    arguments = {"old_log_prob": old - 1, "log_prob": now - 1, "advantages": advantages, "loss_agg_mode": "token-mean",
                 "response_mask": torch.ones(4, RESPONSE_WIDTH), "config": config, "rollout_is_weights": None}
    bypass, vanilla = (real_verl.get_policy_loss_fn(mode)(**arguments)[0] for mode in ("bypass_mode", "vanilla"))
    assert (bypass == vanilla) == is_vanilla
    assert """`loss_type="ppo_clip"` is vanilla over""" in PAGE and "without `rollout_rs`" in PAGE


@pytest.mark.parametrize("section", ["fsdp_config", "megatron", "veomni", "torchtitan", "engine"])
@pytest.mark.parametrize("inner, key, on, off", [("qat", "enable", True, False), ("router_replay", "mode", "R2", "disabled")])
def test_g17_what_verls_engines_read_of_a_dropped_section_is_refused(section, inner, key, on, off):
    for value, is_on in ((on, True), (off, False), (None, False)):
        config = real_verl.whole_config({section: {inner: {key: value}, "offload": True}})
        if is_on:
            why = verl.REFUSED[f"{inner}.{key}"]
            assert refused(config) == f"actor.{section}.{inner}.{key} is {on!r}: {why}"
        else:
            assert section in verl.loss_from_config(config).dropped
    verl.loss_from_config(real_verl.whole_config({section: {inner: None}}))


def test_g17_quantization_is_refused_where_verls_fsdp_reads_it():
    assert refused(trainers(**{"actor_rollout_ref.actor.fsdp_config.qat.enable": True})).startswith(
        "actor.fsdp_config.qat.enable is True")
    engine = configs.FSDPEngineConfig(qat=configs.QATEngineConfig(enable=True))
    of_classes = real_verl.actor_config(fsdp_config=engine)
    assert of_classes.engine is engine  # verl's name for the section of the strategy
    assert "qat.enable is True" in refused(real_verl.whole_config(of_classes))


@pytest.mark.parametrize("name", ["clip_grad", "grad_clip"])
def test_g17_a_clip_by_which_verls_gradient_is_0_is_refused(name):
    """max_grad_norm=0 is no clipping; verl's 0 is torch's."""
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    torch.nn.utils.clip_grad_norm_([parameter], 0.0)
    assert not parameter.grad.any()
    for value in (0, 0.0, -1.0, float("nan")):
        says = f"actor.optim.clip_grad is {float(value)}: verl scales the gradient to that norm"
        assert refused(real_verl.whole_config({"optim": {name: value}})).startswith(says)
    assert real_verl.update_of({"optim": {name: 1e9}}).adam.max_grad_norm == 1e9


# The recipe.

class Recipe:
    """The page's first snippet, run as verl's trainer would."""

    def __init__(self, config):
        self.trainer = types.SimpleNamespace(config=config, global_steps=0)
        [text] = re.findall(r"```python\nimport stemma\n(.*?)```", PAGE, re.S)
        self.once, self.each = text[text.index("config = "):text.index("print(")], text[text.index("groups = "):]
        self.names = {"verl": types.SimpleNamespace(loss_from_config=verl.loss_from_config, metrics=lambda *_, **__: {},
                                                    groups_from_dataproto=lambda *_: []),
                      "self": self.trainer, "client": self, "batch": None, "metrics": {}}
        self.rates = []
        exec(self.once, self.names)

    def update_actor(self, groups, *, adam, **_):
        self.rates.append(adam.learning_rate)

    def step(self):
        exec(self.each, self.names)


@pytest.mark.parametrize("critic_warmup", [0, 1, 3])
def test_g17_the_recipes_rates_are_those_of_verls_updates_of_the_actor(critic_warmup):
    """verl's trainer counts its steps from 1; its scheduler moves where the actor is updated, and no earlier."""
    steps = 8
    optim = {"actor_rollout_ref.actor.optim.lr": 1.0, "actor_rollout_ref.actor.optim.lr_warmup_steps": 4}
    recipe = Recipe(trainers(**{"trainer.critic_warmup": critic_warmup, **optim}))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, theirs = real_verl.get_constant_schedule_with_warmup(optimizer, num_warmup_steps=4), []
    for recipe.trainer.global_steps in range(1, steps + 1):
        if critic_warmup > recipe.trainer.global_steps:  # as ray_trainer.py has it
            continue
        recipe.step()
        theirs.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert recipe.rates == theirs and theirs[:3] == [0.0, 0.25, 0.5]


# What is no DataProto.

@pytest.mark.parametrize("call", [
    lambda data: verl.groups_from_dataproto(data, real_verl.update_of({})), verl.groups_for_log_probs,
    lambda data: verl.padded_log_probs({}, data),
    lambda data: verl.log_probs(types.SimpleNamespace(log_probs=1), data, real_verl.update_of({}))])
def test_g17_the_batch_of_verls_default_trainer_is_refused_by_its_name(call):
    with pytest.raises(TypeError, match="^data is a KVBatchMeta, which has no batch: .*trainer.use_v1=False"):
        call(object.__new__(KVBatchMeta))
    assert OmegaConf.load(YAML).trainer.use_v1 and "It is verl's default (`trainer.use_v1=True`)" in PAGE


def test_g17_a_batch_of_another_temperature_says_which_key_to_change():
    data = padded_batch()
    data.meta_info["temperature"] = 0.5
    with pytest.raises(ValueError, match="temperature 0.5, the update has 1.0: make them the same by actor_rollout_ref.rollout.temp"):
        verl.groups_from_dataproto(data, real_verl.update_of({}))
