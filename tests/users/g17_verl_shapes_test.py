"""G17: stemma.verl takes arrays in the shapes that verl gives them, and refuses any other by name."""

import types

import pytest
import real_verl
import torch
from g17_verl_test import PROMPT_WIDTH, RESPONSE_WIDTH, padded_batch
from stemma import verl


def shaped(field, change):
    """A batch with one array in another shape, as a dict: a DataProto refuses some of these by itself."""
    data = padded_batch()
    batch = {name: data.batch[name] for name in data.batch.keys()}
    batch["old_log_probs"] = batch["ref_log_prob"] = batch["rollout_is_weights"] = -torch.ones(12, RESPONSE_WIDTH)
    batch[field] = change(batch[field])
    return types.SimpleNamespace(batch=batch, non_tensor_batch=data.non_tensor_batch, meta_info={})


@pytest.mark.parametrize("field, change, says", [
    ("attention_mask", lambda a: a[:, :-2], r"has shape \(12, 14\): it must have \(12, 16\), the columns of prompts, then"),
    ("attention_mask", lambda a: a[:, PROMPT_WIDTH:], r"has shape \(12, 7\): it must have \(12, 16\)"),
    ("attention_mask", lambda a: torch.cat([a, a[:, :1] * 0], 1), r"has shape \(12, 17\): it must have \(12, 16\)"),
    ("prompts", lambda a: a[:1], r"has shape \(1, 9\): it must have \(12, 9\), a row for each of responses"),
    ("prompts", lambda a: a[0], r"has shape \(9,\): it must have two dimensions"),
    ("responses", lambda a: a[0], r"has shape \(7,\): it must have two dimensions"),
    *((field, change, says) for field in ("advantages", "response_mask", "old_log_probs", "ref_log_prob", "rollout_is_weights")
      for change, says in ((lambda a: a[:, 0], r"has shape \(12,\): it must have two dimensions"),
                           (lambda a: a[:, :1], r"has shape \(12, 1\): it must have \(12, 7\), that of responses"),
                           (lambda a: a[:, :-1], r"has shape \(12, 6\): it must have \(12, 7\)"),
                           (lambda a: torch.cat([a[:, :1]] * 16, 1), r"has shape \(12, 16\): it must have \(12, 7\)"),
                           (lambda a: a[:-1], r"has shape \(11, 7\): it must have \(12, 7\)")))])
def test_g17_arrays_of_another_shape_are_refused_by_name(field, change, says):
    """numpy would cut or repeat them until they fit."""
    update = real_verl.update_of(real_verl.actor_config(use_kl_loss=True))
    assert verl.groups_from_dataproto(shaped(field, lambda a: a), update)
    with pytest.raises(ValueError, match=f"^{field} {says}"):
        verl.groups_from_dataproto(shaped(field, change), update)


@pytest.mark.parametrize("change, count", [(lambda uids: uids[:-1], 11), (lambda uids: [*uids, "one more"], 13)])
def test_g17_a_batch_has_a_uid_for_each_row(change, count):
    data = padded_batch()
    data.non_tensor_batch = {"uid": change(data.non_tensor_batch["uid"])}
    with pytest.raises(ValueError, match=f"^uid has {count} entries for the 12 rows of responses: it must have one for each"):
        verl.groups_for_log_probs(data)
