"""Presets show what they send; schedules are the formulas that their help says."""

import dataclasses
import math
import pickle

import numpy
import pytest
import stemma
from stemma import _proto, config, verl


def test_a_preset_shows_every_field_it_sends():
    loss = stemma.grpo()
    assert loss.as_dict() == {"loss_mode": "vanilla", "loss_agg_mode": "token-mean", "temperature": 1.0,
                              "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "normalize_advantage_std": True}
    for name, value in loss.as_dict().items():
        assert f"{name}={value!r}" in repr(loss)


def test_fields_of_a_preset_can_be_changed_and_unknown_ones_are_refused():
    assert stemma.grpo(clip_ratio_high=0.3).clip_ratio_high == 0.3
    with pytest.raises(TypeError):
        stemma.grpo(clip_high=0.3)


def test_presets_name_modes_that_the_proto_knows():
    modes = {p.loss_mode for p in (stemma.grpo(), stemma.dr_grpo(64), stemma.dapo(), stemma.gspo(), stemma.cispo(),
                                   stemma.importance_sampling(), stemma.reinforce(), stemma.cross_entropy())}
    assert modes == {"vanilla", "gspo", "cispo", "importance_sampling", "gpg", "cross_entropy"}


def test_presets_differ_from_grpo_where_their_papers_do():
    grpo = stemma.grpo().as_dict()
    assert stemma.dapo().as_dict() == {**grpo, "clip_ratio_high": 0.28}
    assert stemma.cispo().as_dict() == {**grpo, "loss_mode": "cispo", "clip_ratio_low": 1.0}
    assert stemma.gspo().as_dict() == {**grpo, "loss_mode": "gspo", "loss_agg_mode": "seq-mean-token-mean",
                                       "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    assert stemma.dr_grpo(64).as_dict() == {**grpo, "loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 64,
                                            "normalize_advantage_std": False}


def test_supervised_and_unclipped_losses_send_no_clip():
    for preset in (stemma.cross_entropy(), stemma.reinforce(), stemma.importance_sampling()):
        assert "clip_ratio_low" not in preset.as_dict()


def test_messages_hold_exactly_the_fields_of_the_dict():
    message = config.fill_message(_proto.UpdateHeader(), {
        "loss": stemma.dr_grpo(64).as_dict(), "adam": stemma.adamw(1e-3).as_dict(), "old": config.source("policy")})
    assert message.loss.HasField("loss_scale_factor") and not message.loss.HasField("kl_loss_coef")
    assert message.loss.HasField("normalize_advantage_std") and not message.loss.normalize_advantage_std
    assert _proto.to_dict(message)["adam"]["weight_decay_scope"] == "ALL"
    assert _proto.to_dict(message)["old"] == {"from": "WEIGHTS", "weights": "policy"}
    assert not message.HasField("ref")


def test_adamw_without_decay_sends_no_scope():
    assert "weight_decay_scope" not in stemma.adamw(1e-3, weight_decay=0.0).as_dict()


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="policy"):
        config.source("elsewhere")
    with pytest.raises(ValueError, match="AUTO, REUSE, DENSE"):
        _proto.enum_number("stemma.v1.Schedule", "fast")
    with pytest.raises(ValueError, match="no field 'lr'"):
        config.fill_message(_proto.UpdateHeader(), {"adam": {"lr": 1}})


def test_schedules():
    assert [stemma.constant(2.0)(s) for s in (0, 7)] == [2.0, 2.0]
    assert [stemma.constant(2.0, warmup_steps=4)(s) for s in (0, 1, 3, 9)] == [0.5, 1.0, 2.0, 2.0]
    assert [stemma.linear(1.0, 10)(s) for s in (0, 5, 10, 99)] == [1.0, 0.5, 0.0, 0.0]
    assert stemma.linear(1.0, 12, warmup_steps=2, min_lr_ratio=0.5)(7) == 0.75
    assert stemma.cosine(1.0, 10)(5) == pytest.approx(0.5)
    assert stemma.cosine(1.0, 10)(2) == pytest.approx(0.5 * (1 + math.cos(0.2 * math.pi)))


@pytest.mark.parametrize("schedule", [stemma.constant(2.0, 3), stemma.linear(1.0, 12, 2, 0.5), stemma.cosine(1.0, 10, 2)],
                         ids=["constant", "linear", "cosine"])
def test_schedules_cross_processes(schedule):
    again = pickle.loads(pickle.dumps(schedule))
    assert [again(step) for step in range(15)] == [schedule(step) for step in range(15)]


@pytest.mark.parametrize("make, says", [
    (lambda: stemma.constant(1.0, warmup_steps=2.5), "warmup_steps is 2.5: pass a whole number from 0 on"),
    (lambda: stemma.constant(1.0, warmup_steps=-1), "warmup_steps is -1: pass a whole number from 0 on"),
    (lambda: stemma.constant(-1.0), "learning_rate is -1.0: pass a number, not negative"),
    (lambda: stemma.constant("1e-3"), "learning_rate is '1e-3': pass a number"),
    (lambda: stemma.constant(math.nan), "learning_rate is nan: pass a number"),
    (lambda: stemma.constant(1.0)(-1), "step is -1: pass a whole number from 0 on"),
    (lambda: stemma.linear(1.0, 10)(-1), "step is -1: pass a whole number from 0 on"),
    (lambda: stemma.cosine(1.0, 10)(0.5), "step is 0.5: pass a whole number from 0 on"),
    (lambda: stemma.linear(1.0, 10, warmup_steps=11), "warmup_steps is 11, beyond total_steps, 10: pass at most that"),
    (lambda: stemma.cosine(1.0, 0), "total_steps is 0: pass a whole number from 1 on"),
    (lambda: stemma.cosine(1.0, 10.0), "total_steps is 10.0: pass a whole number from 1 on"),
    (lambda: stemma.cosine(1.0, 10, min_lr_ratio=1.5), "min_lr_ratio is 1.5: pass a number from 0 to 1"),
])
def test_a_schedule_that_would_train_by_a_wrong_rate_is_refused(make, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        make()


def test_a_schedule_takes_numpys_numbers_and_a_warm_up_that_is_everything():
    assert stemma.linear(numpy.float32(1), numpy.int64(4), warmup_steps=numpy.int32(4))(numpy.int64(1)) == 0.5


def test_a_schedule_is_the_same_for_numpys_small_numbers_which_wrap_and_round():
    small, rate = numpy.int8, numpy.float16(0.125)
    assert stemma.constant(rate, warmup_steps=200)(small(127)) == stemma.constant(0.125, warmup_steps=200)(127)
    for make in (stemma.linear, stemma.cosine):
        schedule, plain = make(rate, small(100), small(90), numpy.float16(0.25)), make(0.125, 100, 90, 0.25)
        assert [schedule(small(step)) for step in (0, 80, 95, 127)] == [plain(step) for step in (0, 80, 95, 127)]


@pytest.mark.parametrize("rate", [10**400, math.inf, math.nan, -1, True, "1e-6"])
def test_a_rate_that_no_number_holds_is_refused(rate):
    for make in (stemma.constant, lambda rate: stemma.linear(rate, 4)):
        with pytest.raises(ValueError, match="^learning_rate is .*: pass a number, not negative$"):
            make(rate)


@pytest.mark.parametrize("header, says", [
    ({"ppo_epochs": 2**40}, r"ppo_epochs is 1099511627776: pass a whole number from 1 to 4294967295"),
    ({"seed": 2**64}, r"seed is 18446744073709551616: pass a whole number from 0 to 18446744073709551615"),
    ({"seed": -1}, r"seed is -1: pass a whole number from 0 to 18446744073709551615"),
    ({"adam": {"eps": 10**400}}, r"adam.eps is 10{56}\.\.\.: pass a number of at most 1.79769e\+308"),
    ({"adam": {"eps": 10**5000}}, r"adam.eps is a whole number of 16610 bits: pass a number of at most 1.79769e\+308"),
])
def test_a_number_out_of_range_is_told_the_range(header, says):
    with pytest.raises(ValueError, match=f"^{says}$"):
        config.fill_message(_proto.UpdateHeader(), header)


def of_verl(actor, **sections):
    return verl.loss_from_config({"actor_rollout_ref": {"actor": actor}, "algorithm": {}, **sections})


def test_verls_steps_count_from_0():
    says = r"^step is -1: it is verl's global_steps - max\(1, trainer.critic_warmup\), and verl skips the actor's update where"
    with pytest.raises(ValueError, match=says):
        of_verl({"optim": {"lr": 1.0, "lr_warmup_steps": 4}}).arguments(step=-1)


def test_an_update_is_called_with_what_verls_configuration_says():
    update = of_verl({
        "shuffle": True, "data_loader_seed": 7, "ppo_mini_batch_size": 4, "ppo_epochs": 2, "router_replay": {"mode": "disabled"},
        "qat": {"enable": False, "mode": "w4a16"}, "optim": {"lr": 0.5, "lr_warmup_steps": 4}})
    assert update.arguments(step=2) == {
        "loss": update.loss, "adam": dataclasses.replace(update.adam, learning_rate=0.25), "mini_batch": 4, "epochs": 2,
        "shuffle": True, "seed": 7, "on_nonfinite": "skip"}
    assert update.dropped == {"router_replay.mode": "off", "qat.enable": "off", "qat.mode": "of a section that is off"}
