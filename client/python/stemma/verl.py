"""verl's actor update on a Stemma server: its configuration, its batches, its metrics. docs/verl.md has the tables.

    update = stemma.verl.loss_from_config(config)
    step = global_steps - max(1, config.trainer.critic_warmup)
    result = client.update_actor(stemma.verl.groups_from_dataproto(batch, update), **update.arguments(step))
    metrics = stemma.verl.metrics(result)

Written against verl 0.9 with trainer.use_v1=False. Needs neither verl nor torch to be imported: a configuration is a mapping or a dataclass, a batch is
anything with `batch` and `non_tensor_batch` whose arrays numpy reads.
"""

import dataclasses
import math
import numbers
from typing import Dict, List, Tuple

from ._verl_config import DROPPED, REFUSED, REFUSED_OUTSIDE, TAKEN, ActorUpdate, loss_from_config
from .groups import Group, Rollout

__all__ = ["ActorUpdate", "DROPPED", "REFUSED", "REFUSED_OUTSIDE", "TAKEN", "groups_for_log_probs", "groups_from_dataproto",
           "log_probs", "loss_from_config", "metrics", "padded_log_probs"]


def groups_from_dataproto(data, update, dp_size=1) -> List[Group]:
    """stemma.Group objects of a padded DataProto, as verl's trainer passes it to update_actor: padding is stripped, rows of one
    uid and one prompt are one group, several prompts under one uid share it as their stat_group. The groups of verl's
    first mini-batch come first.

    data    with `prompts`, `responses`, `attention_mask`, `advantages`, and what the loss reads of `response_mask`,
            `old_log_probs`, `ref_log_prob`, `rollout_is_weights`; `uid` in non_tensor_batch. Without `old_log_probs` the server
            computes them
    update  of loss_from_config
    dp_size     how many data-parallel ranks verl would train on: each cuts mini-batches of its own share of the rows
    """
    return _in_mini_batches(_groups(_TrainedRows(data, update)), update, dp_size)


def groups_for_log_probs(data) -> List[Group]:
    """stemma.Group objects of a padded DataProto for client.log_probs alone: groups and padding as in groups_from_dataproto, and
    nothing but tokens, so that advantages and reference log-probs need not be there yet. log_probs makes and sends them by itself.

    data    with `prompts`, `responses`, `attention_mask`; `uid` in non_tensor_batch
    """
    return _groups(_Rows(data))


def log_probs(client, data, update, weights="policy", entropy=False):
    """Log-probs of a padded DataProto's responses at the temperature of the update, as the update's loss reads them: a float32
    numpy array of the shape of `responses`, zeros where there is padding. With entropy a pair: such an array of entropies
    comes second.

    client  a stemma.Client
    data    as in groups_for_log_probs: the batch as verl's trainer passes it to compute_log_prob does
    update  of loss_from_config; its loss has the temperature
    weights     "policy", or the name of a checkpoint, such as one that was saved for the reference; as in client.log_probs
    entropy     whether entropies come too
    """
    _check_temperature(data, update)
    sent = client.log_probs(groups_for_log_probs(data), temperature=update.loss.temperature, entropy=entropy, weights=weights)
    out = padded_log_probs(sent, data)
    return (out, _padded(sent, data, "entropy")) if entropy else out


def padded_log_probs(log_probs, data):
    """log_probs of client.log_probs or of a result, for groups of groups_from_dataproto or groups_for_log_probs, as a float32
    numpy array of the shape of data's responses: zeros where there is padding.

    log_probs   {rollout_id: RolloutLogProbs}
    data        the DataProto that the groups came from
    """
    if log_probs is None:
        raise ValueError("log_probs is None: the update did not ask for them (return_log_probs=True), or they are no longer kept, as "
                         "the result's warnings then say; stemma.verl.log_probs computes new ones")
    return _padded(log_probs, data, "log_probs")


def metrics(result, peak_tflops=None, devices=None) -> Dict[str, float]:
    """The result's metrics under verl's names (they have them already), for verl's logger, without actor/entropy: verl's trainer
    has one of its own, which is aggregated as loss_agg_mode says, and verl's update has actor/entropy_loss alone.

    result      an UpdateResult
    peak_tflops     what the data sheet of one device promises, in 10^12 FLOP/s: gives perf/mfu/actor, which counts, as
                    verl does, the FLOPs of every trajectory in full, by the peak of all devices together
    devices     how many devices made the update: one for each worker of the mesh, dp * pp * cp * tp. None: one, and a
                ValueError where several workers made it, because the result does not say how many
    """
    if peak_tflops is not None:
        _check_peak(peak_tflops)
    out = dict(result.metrics)
    out.pop("actor/entropy", None)
    seconds = out.get("perf/actor/time_per_step")
    if peak_tflops is not None and seconds:
        out["perf/mfu/actor"] = out["perf/actor/flops_dense"] / seconds / (peak_tflops * 1e12 * _devices(devices, out))
    return out


def _devices(devices, metrics_of_result):
    if devices is None:
        if "time/slowest_rank_s" in metrics_of_result:  # a metric of several workers alone
            raise ValueError("devices is not given, and several workers made this update: pass devices=, how many there "
                             "are (dp * pp * cp * tp of the server's mesh)")
        return 1
    return _positive("devices", devices)


def _check_peak(peak_tflops):
    is_number = isinstance(peak_tflops, numbers.Real) and not isinstance(peak_tflops, bool)
    if not is_number or not 0 < peak_tflops < math.inf:
        raise ValueError(f"peak_tflops is {peak_tflops!r}: pass a number above 0, 10^12 FLOP/s of one device, or None")


def _positive(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{name} is {value!r}: pass a whole number from 1 on")
    return int(value)


# Batches.

def _groups(rows):
    """Groups by uid and prompt, in the order in which they first appear."""
    by_key: Dict[Tuple[str, bytes], Group] = {}
    for index in range(rows.count):
        prompt = rows.prompt(index)
        key = (rows.uids[index], prompt.tobytes())
        if key not in by_key:
            by_key[key] = Group(rows.uids[index], prompt, [])
        by_key[key].rollouts.append(rows.rollout(index))
    groups = list(by_key.values())
    _name_groups(groups)
    return groups


def _padded(log_probs, data, field):
    import numpy

    out = numpy.zeros(_array(_batch(data)["responses"]).shape, dtype=numpy.float32)
    for rollout_id, rollout in log_probs.items():
        values = getattr(rollout, field)
        out[int(rollout_id), :len(values)] = values
    return out


def _batch(data):
    if not hasattr(data, "batch"):
        raise TypeError(f"data is a {type(data).__name__}, which has no batch: pass a padded DataProto, as verl's trainer has it with "
                        "trainer.use_v1=False")
    return data.batch


def _check_temperature(data, update):
    temperature = (getattr(data, "meta_info", None) or {}).get("temperature", update.loss.temperature)
    if temperature != update.loss.temperature:
        raise ValueError(f"the batch was sampled at temperature {temperature}, the update has {update.loss.temperature}: "
                         "make them the same by actor_rollout_ref.rollout.temperature")


class _Rows:
    """The rows of a padded batch, padding stripped: tokens alone."""

    def __init__(self, data):
        batch, others = _batch(data), data.non_tensor_batch
        for name in ("prompts", "responses", "attention_mask"):
            if name not in batch.keys():
                raise ValueError(f"the batch lacks {name}: pass it as verl's trainer passes it to its actor")
        if "uid" not in others:
            raise ValueError("non_tensor_batch lacks uid, by which the responses of a prompt are found")
        if "multi_modal_inputs" in others:
            raise ValueError("non_tensor_batch holds multi_modal_inputs: Stemma trains on text")
        arrays = {name: _array(batch[name]) for name in ("prompts", "responses", "attention_mask")}
        _check_shapes(arrays)
        self._prompts, self._responses = arrays["prompts"], arrays["responses"]
        self.count = len(self._prompts)
        self.uids = [str(uid) for uid in others["uid"]]
        if len(self.uids) != self.count:
            raise ValueError(f"uid has {len(self.uids)} entries for the {self.count} rows of responses: it must have one for each")
        attention = arrays["attention_mask"].astype(bool)
        width = self._prompts.shape[1]
        self._prompt_lengths = _lengths(attention[:, :width][:, ::-1], "prompts are not padded on the left")
        self._attention = attention[:, width:]
        self._lengths = _lengths(self._attention, "responses are not padded on the right")

    def prompt(self, index):
        return self._prompts[index, self._prompts.shape[1] - self._prompt_lengths[index]:].astype("<i4")

    def rollout(self, index):
        return Rollout(self._responses[index, :self._lengths[index]], rollout_id=str(index))


class _TrainedRows(_Rows):
    """Rows with what the loss reads of them."""

    def __init__(self, data, update):
        batch = _batch(data)
        if "advantages" not in batch.keys():
            raise ValueError("the batch lacks advantages: pass it as verl's trainer passes it to update_actor (for log-probs, which "
                             "come before them: stemma.verl.log_probs)")
        super().__init__(data)
        _check_temperature(data, update)
        self._arrays = {name: _array(batch[name]) for name in self._read(batch, update)}
        _check_shapes({"responses": self._responses, **self._arrays})
        self._advantages = self._arrays.pop("advantages")
        self._mask = self._arrays.pop("response_mask", self._attention).astype(bool)
        if (self._mask & ~self._attention).any():
            raise ValueError("response_mask is 1 where attention_mask is 0")

    @staticmethod
    def _read(batch, update) -> List[str]:
        names = ["advantages"]
        if update.loss.loss_mode != "gpg" and "old_log_probs" in batch.keys():
            names.append("old_log_probs")
        if update.loss.kl_loss_coef is not None:
            if "ref_log_prob" not in batch.keys():
                raise ValueError("use_kl_loss is on, but the batch lacks ref_log_prob")
            names.append("ref_log_prob")
        return names + [name for name in ("response_mask", "rollout_is_weights") if name in batch.keys()]

    def rollout(self, index):
        out, length = super().rollout(index), self._lengths[index]
        mask = self._mask[index, :length]
        advantages = self._advantages[index, :length]
        kept = advantages[mask]
        if not len(kept):
            advantage = 0.0
        else:
            advantage = float(kept[0]) if (kept == kept[0]).all() else advantages
        return dataclasses.replace(out, advantage=advantage, mask=None if mask.all() else mask,
                                   **{name: values[index, :length] for name, values in self._arrays.items()})


def _array(values):
    import numpy

    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) in ("torch.bfloat16", "torch.float16") else values
    return numpy.asarray(values)


def _check_shapes(arrays):
    """Refuses arrays of a batch, by name, that numpy would cut or repeat until they fit one another: rows would be trained on
    numbers that are not theirs."""
    for name, array in arrays.items():
        if array.ndim != 2:
            raise ValueError(f"{name} has shape {array.shape}: it must have two dimensions, [rows, width]")
    rows, width = arrays["responses"].shape
    prompt_width = arrays["prompts"].shape[1] if "prompts" in arrays else 0
    shapes = {"prompts": ((rows, prompt_width), "a row for each of responses"),
              "attention_mask": ((rows, prompt_width + width), "the columns of prompts, then those of responses")}
    for name, array in arrays.items():
        shape, what = shapes.get(name, ((rows, width), "that of responses"))
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}: it must have {shape}, {what}")


def _lengths(attention, problem):
    """Counts the ones of each row, which must be ones and then zeros."""
    lengths = attention.sum(axis=1)
    for row, length in zip(attention, lengths):
        if not row[:length].all():
            raise ValueError(problem)
    return lengths


def _name_groups(groups):
    """Unique uids: those of several prompts under one get a number, and the uid as their stat_group."""
    members: Dict[str, List[Group]] = {}
    for group in groups:
        members.setdefault(group.uid, []).append(group)
    for uid, same in members.items():
        for number, group in enumerate(same if len(same) > 1 else ()):
            group.uid, group.stat_group = f"{uid}/prompt-{number}", uid


def _in_mini_batches(groups, update, dp_size):
    """The groups, in the order of verl's mini-batches. verl deals equal shares of consecutive rows to its data-parallel
    ranks, and each cuts its own share: the first parts of all ranks together are the first mini-batch, of mini_batch * n
    rows. By groups that is the same only if all have n rollouts, and the rows of a group lie in one mini-batch."""
    _positive("dp_size", dp_size)
    if update.mini_batch is None or len(groups) <= update.mini_batch:
        return groups
    sizes = {len(group.rollouts) for group in groups}
    if len(sizes) > 1 or update.rollout_n not in (None, *sizes):
        raise ValueError(f"groups have {sorted(sizes)} rollouts and rollout_n is {update.rollout_n}: verl would cut mini-batches "
                         "of rows through groups, which Stemma does not; raise ppo_mini_batch_size to the number of groups "
                         f"({len(groups)}), or send rows of one n")
    if update.shuffle:
        return groups
    [n] = sizes
    mini_batch_of = _verls_mini_batches(n * len(groups), n * update.mini_batch, dp_size)
    groups = sorted(groups, key=lambda group: mini_batch_of(int(group.rollouts[0].rollout_id)))
    for number, group in enumerate(groups):
        ours = number // update.mini_batch
        for row in (int(rollout.rollout_id) for rollout in group.rollouts):
            theirs = mini_batch_of(row)
            if theirs != ours:
                raise ValueError(f"row {row} of uid {group.uid!r} is of verl's mini-batch {theirs}, and its prompt's group "
                                 f"of mini-batch {ours}, where verl has dp_size={dp_size} ranks: keep the rows of a prompt "
                                 "together (trainer.balance_batch=False), pass the dp_size that verl would have, or "
                                 f"raise ppo_mini_batch_size to the number of groups ({len(groups)})")
    return groups


def _verls_mini_batches(num_rows, mini_batch_rows, dp_size):
    """A function from a row to the number of verl's mini-batch that it is in."""
    if num_rows % dp_size or mini_batch_rows % dp_size:
        raise ValueError(f"dp_size is {dp_size}: verl deals as many rows to each rank, of the {num_rows} of the batch and "
                         f"the {mini_batch_rows} of a mini-batch; pass a divisor of both")
    return lambda row: row % (num_rows // dp_size) // (mini_batch_rows // dp_size)
