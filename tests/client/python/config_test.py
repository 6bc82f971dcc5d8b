"""Presets show what they send; schedules are the formulas that their help says."""

import math

import pytest
import stemma
from stemma import _proto, config


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
    assert stemma.cispo().as_dict() == {**grpo, "loss_mode": "cispo"}
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
