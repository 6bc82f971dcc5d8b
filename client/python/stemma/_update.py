"""The messages of an update, for those who send it and those who only write it down."""

from . import _proto, config
from .groups import first_with, first_without, parts as encode

# Header fields by the names of the parameters that set them: what is said of a wrong one.
_API_NAMES = {"ppo_mini_batch_size": "mini_batch", "ppo_epochs": "epochs", "request.request_id": "request_id",
              "request.expected_step": "expected_step", "request.schedule": "schedule", "request.on_nonfinite": "on_nonfinite"}
_CARRIED = {"client": {"old": "old_log_probs", "ref": "ref_log_prob"}, "rollout": {"old": "rollout_log_probs"}}
# What needs none of a rollout. The policy as its own reference has no KL term.
_INSTEAD = {"old": 'old="policy"', "ref": 'ref="checkpoint:NAME"'}


def update_parts(groups, loss, adam, old, ref, mini_batch=None, epochs=1, shuffle=False, seed=None, **fields):
    """Returns header, groups, end: a header that says where log-probs come from once the groups are known. Parameters are those
    of Client.submit; fields: further ones of the header, in the trace's names, not sent where they are None."""
    loss, its_old = config.loss_fields(loss)
    header = config.fill_message(_proto.UpdateHeader(), config.without_none({
        "loss": loss, "adam": config.adam_fields(adam), "ppo_mini_batch_size": mini_batch,
        "ppo_epochs": epochs if epochs != 1 or isinstance(epochs, bool) else None, "shuffle": shuffle, "seed": seed, **fields}), names=_API_NAMES)
    parts = encode("update", header, groups, checked=True)
    header = parts[0].update
    header.num_groups = parts[-1].end.num_groups
    old = config.resolve_old(header.loss.loss_mode, its_old if old == "auto" else old, first_with(parts, "old_log_probs"),
                             first_with(parts, "rollout_log_probs"), _num_steps(header))
    if ref == "auto":
        ref = "client" if header.loss.HasField("kl_loss_coef") and first_with(parts, "ref_log_prob") else None
    for name, source in (("old", old), ("ref", ref)):
        if source is not None:
            _set_source(header, name, source, parts)
    return parts


def _set_source(header, name, source, parts):
    try:
        config.fill_message(header, {name: config.source(source)})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    field = _CARRIED.get(source, {}).get(name) if isinstance(source, str) else None
    lacking = field and first_without(parts, field)
    if lacking:
        raise ValueError(f'{lacking} lacks {field}, which {name}="{source}" reads: send it with every Rollout, or '
                         f"with none and say {_INSTEAD[name]}")


def _num_steps(header):
    per_epoch = -(-header.num_groups // header.ppo_mini_batch_size) if header.ppo_mini_batch_size else 1
    return per_epoch * (header.ppo_epochs or 1)
