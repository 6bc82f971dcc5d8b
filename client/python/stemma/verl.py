"""verl's actor update on a Stemma server: its configuration, its batches, its metrics. docs/verl.md has the tables.

    update = stemma.verl.loss_from_config(config)
    step = global_steps - max(1, config.trainer.critic_warmup)
    result = client.update_actor(stemma.verl.groups_from_dataproto(batch, update), **update.arguments(step))
    metrics = stemma.verl.metrics(result)

Written against verl 0.9: its V1 trainer, whose batches are TensorDicts, and the legacy one (trainer.use_v1=False), whose are
DataProtos. Needs neither verl nor torch to be imported: a configuration is a mapping or a dataclass, arrays are what numpy reads.
"""

import math
import numbers
from typing import Dict, List, Tuple

from ._verl_config import DROPPED, REFUSED, REFUSED_OUTSIDE, TAKEN, ActorUpdate, loss_from_config
from ._verl_rows import rows_of
from .groups import Group, Rollout

__all__ = ["ActorUpdate", "DROPPED", "FIELDS", "REFUSED", "REFUSED_OUTSIDE", "TAKEN", "groups_for_log_probs",
           "groups_from_dataproto", "groups_from_tensordict", "log_probs", "loss_from_config", "metrics", "padded_log_probs"]

# What is read of the rows of verl's V1 trainer, for select_fields of tq.kv_batch_get; a field that is not there is left out.
FIELDS = ("uid", "prompts", "responses", "response_mask", "advantages", "old_log_probs", "ref_log_prob", "rollout_is_weights",
          "multi_modal_inputs")


def groups_from_dataproto(data, update, dp_size=1) -> List[Group]:
    """stemma.Group objects of a padded DataProto, as verl's legacy trainer passes it to update_actor: padding is stripped, rows of
    one uid and one prompt are one group, several prompts under one uid share it as their stat_group. The groups of verl's
    first mini-batch come first.

    data    with `prompts`, `responses`, `attention_mask`, `advantages`, and what the loss reads of `response_mask`,
            `old_log_probs`, `ref_log_prob`, `rollout_is_weights`; `uid` in non_tensor_batch. Without `old_log_probs` the server
            computes them
    update  of loss_from_config
    dp_size     how many data-parallel ranks verl would train on: each cuts mini-batches of its own share of the rows
    """
    return _in_mini_batches(_groups_of_update(rows_of(data), update), update, dp_size)


def groups_from_tensordict(data, update) -> List[Group]:
    """stemma.Group objects of what verl's V1 trainer keeps in its TransferQueue: as groups_from_dataproto makes them, in the order
    in which their prompts first appear. A mini-batch is ppo_mini_batch_size of them, however many rows they have.

    data    the TensorDict that tq.kv_batch_get returns for the keys of a batch and FIELDS: `prompts`, `responses`, `advantages` and
            the others as in groups_from_dataproto, each row of its own length; `uid`
    update  of loss_from_config
    """
    return _groups_of_update(rows_of(data), update)


def groups_for_log_probs(data) -> List[Group]:
    """stemma.Group objects of a batch for client.log_probs alone: groups and padding as in groups_from_dataproto, and
    nothing but tokens, so that advantages and reference log-probs need not be there yet. log_probs makes and sends them by itself.

    data    a DataProto with `prompts`, `responses`, `attention_mask`, and `uid` in non_tensor_batch; or a TensorDict with
            `prompts`, `responses`, `uid`
    """
    return _groups_of_tokens(rows_of(data))


def log_probs(client, data, update, weights="policy", entropy=False):
    """Log-probs of a batch's responses at the temperature of the update, as the update's loss reads them. Of a padded DataProto a
    float32 numpy array of the shape of `responses`, zeros where there is padding; of a TensorDict a list of arrays, one for
    each row. With entropy a pair: the same of entropies comes second.

    client  a stemma.Client
    data    as in groups_for_log_probs: the batch as verl's trainer has it for compute_log_prob does
    update  of loss_from_config; its loss has the temperature
    weights     "policy", or the name of a checkpoint, such as one that was saved for the reference; as in client.log_probs
    entropy     whether entropies come too
    """
    rows = rows_of(data)
    _check_temperature(rows, update)
    sent = client.log_probs(_groups_of_tokens(rows), temperature=update.loss.temperature, entropy=entropy, weights=weights)
    out = _joined(sent, rows, "log_probs")
    return (out, _joined(sent, rows, "entropy")) if entropy else out


def padded_log_probs(log_probs, data):
    """log_probs of client.log_probs or of a result, for groups that this module made, in the form of their batch: of a DataProto a
    float32 numpy array of the shape of its responses, zeros where there is padding; of a TensorDict a list of arrays.

    log_probs   {rollout_id: RolloutLogProbs}
    data        the DataProto or TensorDict that the groups came from
    """
    if log_probs is None:
        raise ValueError("log_probs is None: the update did not ask for them (return_log_probs=True), or they are no longer kept, as "
                         "the result's warnings then say; stemma.verl.log_probs computes new ones")
    return _joined(log_probs, rows_of(data), "log_probs")


def metrics(result, peak_tflops=None, devices=None) -> Dict[str, float]:
    """The result's metrics under verl's names (they have them already), for verl's logger, without actor/entropy: verl's trainer
    has one of its own, which is aggregated as loss_agg_mode says, and verl's update has actor/entropy_loss alone.

    result      an UpdateResult
    peak_tflops     what the data sheet of one device promises, in 10^12 FLOP/s: gives perf/mfu/actor, which counts, as
                    verl does, the FLOPs of a trajectory in full, of those that are run, by the peak of all devices together
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

def _groups(rows, make_rollout):
    """Groups by uid and prompt, in the order in which they first appear."""
    by_key: Dict[Tuple[str, bytes], Group] = {}
    for row in range(rows.count):
        prompt = rows.prompt(row).astype("<i4")
        key = (rows.uids[row], prompt.tobytes())
        if key not in by_key:
            by_key[key] = Group(rows.uids[row], prompt, [])
        by_key[key].rollouts.append(make_rollout(row))
    groups = list(by_key.values())
    _name_groups(groups)
    return groups


def _groups_of_tokens(rows):
    return _groups(rows, lambda row: Rollout(rows.response(row), rollout_id=str(row)))


def _groups_of_update(rows, update):
    """Groups with what the loss reads of each rollout."""
    if "advantages" not in rows:
        raise ValueError("the batch lacks advantages: pass it as verl's trainer passes it to update_actor (for log-probs, which "
                         "come before them: stemma.verl.log_probs)")
    _check_temperature(rows, update)
    names = _names_of_log_probs(rows, update)
    has_mask = "response_mask" in rows
    rows.load(["advantages", *names, *(["response_mask"] if has_mask else [])])

    def rollout(row):
        advantages, mask = rows.values("advantages", row), None
        if has_mask:
            mask = rows.values("response_mask", row).astype(bool)
        kept = advantages if mask is None else advantages[mask]
        if not len(kept):
            advantages = 0.0
        elif (kept == kept[0]).all():
            advantages = float(kept[0])
        return Rollout(rows.response(row), rollout_id=str(row), advantage=advantages,
                       mask=None if mask is None or mask.all() else mask, **{name: rows.values(name, row) for name in names})

    return _groups(rows, rollout)


def _names_of_log_probs(rows, update) -> List[str]:
    names = []
    if update.loss.loss_mode != "gpg" and "old_log_probs" in rows:
        names.append("old_log_probs")
    if update.loss.kl_loss_coef is not None:
        if "ref_log_prob" not in rows:
            raise ValueError("use_kl_loss is on, but the batch lacks ref_log_prob")
        names.append("ref_log_prob")
    return names + (["rollout_is_weights"] if "rollout_is_weights" in rows else [])


def _joined(log_probs, rows, field):
    return rows.join({int(rollout_id): getattr(rollout, field) for rollout_id, rollout in log_probs.items()})


def _check_temperature(rows, update):
    if rows.temperature not in (None, update.loss.temperature):
        raise ValueError(f"the batch was sampled at temperature {rows.temperature}, the update has {update.loss.temperature}: "
                         "make them the same by actor_rollout_ref.rollout.temperature")


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
