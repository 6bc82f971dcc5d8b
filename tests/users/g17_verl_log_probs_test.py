"""verl's old and reference log-probs: before advantages are there, and at the temperature of the loss."""

import pathlib
import re

import numpy
import pytest
import stemma
import torch
from stemma import verl

import real_verl
from g17_verl_test import PROMPT_WIDTH, client, model, padded, padded_batch  # noqa: F401

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "verl.md").read_text()
TEMPERATURE = 0.75


def early_batch():
    """A batch as verl's trainer has it when it asks for log-probs."""
    data = padded_batch()
    data.batch.pop("advantages")
    data.meta_info["temperature"] = TEMPERATURE
    return data


def update_of(**fields):
    return real_verl.update_of(real_verl.actor_config(**fields), temperature=TEMPERATURE)


def test_g17_log_probs_need_no_advantages_and_have_the_losses_temperature(client, model):  # noqa: F811
    data = early_batch()
    # A KL term without ref_log_prob, and rows that no mini-batch of verl's could be made of: neither matters yet.
    update = update_of(use_kl_loss=True, ppo_mini_batch_size=1, rollout_n=4)
    theirs, their_entropies = (values.detach().numpy() for values in padded(model, data, TEMPERATURE))
    ours, entropies = verl.log_probs(client, data, update, entropy=True)
    attention = data.batch["attention_mask"][:, PROMPT_WIDTH:].numpy()
    assert ours.dtype == numpy.float32 and (data.batch["response_mask"].numpy() != attention).any()
    assert ours == pytest.approx(theirs * attention, abs=1e-6)  # float64 at the server; float32 rounds what comes back
    assert entropies == pytest.approx(their_entropies * attention, abs=1e-6)
    assert (verl.log_probs(client, data, update) == ours).all()
    at_one = verl.padded_log_probs(client.log_probs(verl.groups_for_log_probs(data)), data)
    assert numpy.abs(at_one - ours).max() > 0.01, "the control: another temperature is noticed"


def test_g17_an_update_of_these_log_probs_starts_at_a_ratio_of_one(client):  # noqa: F811
    data, update = early_batch(), update_of()
    data.batch["old_log_probs"] = torch.from_numpy(verl.log_probs(client, data, update))
    data.batch["advantages"] = data.batch["response_mask"] * 1.5
    result = client.update_actor(verl.groups_from_dataproto(data, update), update.loss, stemma.adamw(0.0, weight_decay=0.0))
    assert result.effective["old"]["from"] == "CLIENT"
    assert result.metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)


def test_g17_the_pages_lines_for_log_probs_run(client):  # noqa: F811
    [code] = re.findall(r"## Its log-probs.*?```python\n(.*?)```", PAGE, re.DOTALL)
    data, update = early_batch(), update_of()
    client.save_checkpoint("reference")
    names = {"client": client, "batch": data, "update": update, "verl": verl, "torch": torch, "DataProto": real_verl.DataProto}
    exec(code, names)
    batch = data.union(names["old_log_prob"]).union(names["ref_log_prob"])
    assert batch.batch["old_log_probs"].shape == batch.batch["responses"].shape == batch.batch["entropys"].shape
    assert torch.equal(batch.batch["ref_log_prob"], batch.batch["old_log_probs"])  # no step lies between


def test_g17_the_page_asks_for_no_log_probs_at_another_temperature():
    calls = re.findall(r"client\.log_probs\((.*?)\)", PAGE.replace("client.log_probs`", ""))
    assert all("temperature=" in call for call in calls), calls


def test_g17_log_probs_of_a_batch_of_another_temperature_are_refused():
    data = early_batch()
    data.meta_info["temperature"] = 0.5
    with pytest.raises(ValueError, match="sampled at temperature 0.5, the update has 0.75"):
        verl.log_probs(None, data, update_of())


def test_g17_a_batch_without_advantages_is_told_where_log_probs_are():
    with pytest.raises(ValueError, match="lacks advantages: .*stemma.verl.log_probs"):
        verl.groups_from_dataproto(early_batch(), update_of())
    data = early_batch()
    data.batch.pop("responses")
    with pytest.raises(ValueError, match="the batch lacks responses"):
        verl.groups_for_log_probs(data)
