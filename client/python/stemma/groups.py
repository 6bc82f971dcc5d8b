"""Prompt groups: what a user builds, and how they become messages.

Arrays are lists, iterators or anything numpy can read (arrays, tensors of any dtype and device). In a dict, which has the
trace's field names, an array may also be a string: the base64 of the wire bytes. What is wrong in a Group or a Rollout is said
by the names of their fields, what is wrong in a dict by the trace's.
"""

import contextlib
import dataclasses
import re
from typing import Any, List, Optional

from . import _arrays, _proto

MESSAGE_BYTES_MAX = 4 << 20  # a larger group continues in `more` messages

API_NAMES = {"prompt_tokens": "prompt", "response_tokens": "tokens", "response_mask": "mask", "token_advantages": "advantage"}
_LOG_PROBS = ("old_log_probs", "rollout_log_probs", "ref_log_prob")
_NUMBERS = (*_LOG_PROBS, "token_advantages", "rollout_is_weights", "loss_weights")


class _NamedFields:
    """Refuses an attribute that is no field: a mask under another name would be kept, and never sent. Reads an iterator as soon
    as it comes: it gives its values once, and the same object may be sent, planned and counted."""

    def __setattr__(self, name, value):
        if name not in self.__dataclass_fields__:
            known = ", ".join(self.__dataclass_fields__)
            raise AttributeError(f"{type(self).__name__} has no field {name!r}; there are {known}")
        super().__setattr__(name, list(value) if hasattr(value, "__next__") else value)


# Neither is compared by its fields: numpy's arrays have no one answer to `==`.
@dataclasses.dataclass(repr=False, eq=False)
class Rollout(_NamedFields):
    """One sampled response. A field that the loss never reads is refused by the server, so leave out what is not needed. An
    array has one number for each token. Log-probs are at most 0: one above 0.001 where the mask is 1 is refused, as it is
    likely -log p.

    tokens              response token ids, at least none
    advantage           one number, or one for each token; None: made from the rewards of the group
    reward              one number; read when no advantage is sent
    mask                0/1 for each token, 0 takes it out of the loss; None: all ones
    old_log_probs       log-probs of the tokens before this update, for old="client"
    rollout_log_probs   log-probs as the rollout engine reported them, for old="rollout"
    ref_log_prob        log-probs under the reference model, for a KL term with ref="client"
    rollout_is_weights  importance weights, a constant factor of the policy term
    loss_weights        cross_entropy's weight of each token, any sign; None: ones
    rollout_id          unique in the request; None: "<uid>/<index>"
    sample_id           rollouts of the request with one sample_id are one sample, such as the turns of a trajectory: it has one
                        reward, which counts once in the mean of its stat_group, and is one sequence in the seq-mean-... aggregations
    """

    tokens: Any
    advantage: Any = None
    reward: Any = None  # a number, also of numpy or torch
    mask: Any = None
    old_log_probs: Any = None
    rollout_log_probs: Any = None
    ref_log_prob: Any = None
    rollout_is_weights: Any = None
    loss_weights: Any = None
    rollout_id: Optional[str] = None
    sample_id: Optional[str] = None

    def __repr__(self):
        more = [f.name for f in dataclasses.fields(self)[1:] if getattr(self, f.name) is not None]
        return f"Rollout({_count(self.tokens)} tokens{', with ' if more else ''}{', '.join(more)})"

    def as_dict(self):
        """The fields that are set, in the trace's names."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["response_tokens"] = fields.pop("tokens")
        fields["response_mask"] = fields.pop("mask")
        if fields["advantage"] is not None and _arrays.is_array(fields["advantage"]):
            fields["token_advantages"] = fields.pop("advantage")
        return {k: v for k, v in fields.items() if v is not None}


@dataclasses.dataclass(repr=False, eq=False)
class Group(_NamedFields):
    """One prompt and its rollouts.

    uid         unique in the request
    prompt      all prompt token ids, at least one
    rollouts    Rollout objects, or dicts in the trace's field names
    stat_group  groups with one stat_group share the mean and deviation of their rewards, and count as one prompt in
                prompt-mean; None: the group by itself
    """

    uid: str
    prompt: Any
    rollouts: List[Rollout]
    stat_group: Optional[str] = None

    def __repr__(self):
        return f"Group({self.uid!r}, {_count(self.prompt)} prompt tokens, {_count(self.rollouts)} rollouts)"

    def as_dict(self):
        """The fields that are set, in the trace's names."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["prompt_tokens"] = fields.pop("prompt")
        return {k: v for k, v in fields.items() if v is not None or k == "rollouts"}  # None is no list, and told so


def _count(values):
    return len(values) if hasattr(values, "__len__") else "?"


def as_list(groups):
    """The groups as a list; an iterator is read once. ValueError says what to pass instead of what came."""
    if isinstance(groups, (Group, dict)):
        raise ValueError(f"groups is one {'Group' if isinstance(groups, Group) else 'dict'}: pass a list, [group]")
    if isinstance(groups, (str, bytes)) or not hasattr(groups, "__iter__"):
        raise ValueError(f"groups is {groups!r:.60}: pass a list of stemma.Group")
    out = list(groups)
    if not out:
        raise ValueError("groups is empty: pass at least one stemma.Group")
    return out


def parts(header_name, header, groups, message_bytes_max=MESSAGE_BYTES_MAX, checked=False):
    """The messages of one call: header, groups (cut where a message would grow too large), end. A cross_entropy rollout
    without loss_weights gets ones: the server takes none for granted. checked: whether numbers are looked at that the server
    takes, and dicts as closely as a Rollout, whose arrays are always counted."""
    fill_weights = header_name == "update" and header.loss.loss_mode == "cross_entropy"
    out = [_proto.GroupPart(**{header_name: header})]
    num_rollouts = 0
    groups = as_list(groups)
    for index, group in enumerate(groups):
        messages, count = _group_messages(index, group, message_bytes_max, fill_weights, checked)
        out += messages
        num_rollouts += count
    end = _proto.GroupPart()
    end.end.num_groups, end.end.num_rollouts = len(groups), num_rollouts
    return out + [end]


def first_with(messages, field):
    """The path of the first rollout that carries the field (an array); None where none does."""
    return next((_path(g, r) for g, r, _, rollout in _rollouts_of(messages) if getattr(rollout, field)), None)


def first_without(messages, field):
    """The path of the first rollout that has tokens and lacks the field (an array); None where there is none."""
    return next((_path(g, r) for g, r, _, rollout in _rollouts_of(messages)
                 if rollout.response_tokens and not getattr(rollout, field)), None)


def _path(group_index, index):
    return f"groups[{group_index}].rollouts[{index}]"


def name_uids(fields, messages):
    """The fields of a refusal, [(path, what)], where those of rollout_ids that were made of a uid, and so are too long, name the
    uid."""
    made = {f"{_path(g, r)}.rollout_id": (f"groups[{g}].uid", uid) for g, r, uid, rollout in _rollouts_of(messages)
            if rollout.rollout_id == f"{uid}/{r}"}
    out = []
    for path, what in fields:
        limit = re.fullmatch(r"has \d+ bytes, the limit is (\d+)", what)
        if limit and path in made:
            path, uid = made[path]
            what = (f"has {len(uid.encode())} bytes, and a rollout_id that is made of it has more than {limit[1]}: pass a "
                    "shorter uid, or a rollout_id with each Rollout")
        out += [(path, what)] if (path, what) not in out else []
    return out


def _rollouts_of(messages):
    """Yields (index of the group, index in it, uid, rollout) of each rollout."""
    group_index, index = -1, 0
    for part in messages:
        kind = part.WhichOneof("part")
        if kind == "group":
            group_index, index = group_index + 1, 0
        if kind in ("group", "more"):
            group = getattr(part, kind)
            for rollout in group.rollouts:
                yield group_index, index, group.uid, rollout
                index += 1


def _group_messages(index, group, message_bytes_max, fill_weights, checked):
    where = f"groups[{index}]"
    fields = _fields_of(group, Group, where)
    rollouts = _rollout_list(fields.pop("rollouts", ()), f"{where}.rollouts")
    part = _proto.GroupPart()
    target = part.group
    is_dict = isinstance(group, dict)
    _require(fields, ("uid", "prompt_tokens"), where, is_dict)
    _fill(target, fields, where, is_dict)
    if not target.prompt_tokens:
        raise ValueError(f"{where}.{_name('prompt_tokens', is_dict)} is empty: a prompt has at least one token")
    out, size = [part], target.ByteSize()
    for r, rollout in enumerate(rollouts):
        message = _rollout_message(rollout, f"{fields['uid']}/{r}", f"{where}.rollouts[{r}]", checked)
        if fill_weights and not message.loss_weights:
            message.loss_weights = _arrays.pack_float32([1.0] * (len(message.response_tokens) // 4))
        rollout_bytes = message.ByteSize() + 8  # with its tag and length
        if size + rollout_bytes > message_bytes_max and len(target.rollouts):
            part = _proto.GroupPart()
            target = part.more
            target.uid = fields["uid"]
            out.append(part)
            size = target.ByteSize()
        target.rollouts.append(message)
        size += rollout_bytes
    return out, len(rollouts)


def _rollout_list(rollouts, where):
    if isinstance(rollouts, (Rollout, dict)):
        raise ValueError(f"{where} is one {'Rollout' if isinstance(rollouts, Rollout) else 'dict'}: pass a list, [rollout]")
    if isinstance(rollouts, (str, bytes)) or not hasattr(rollouts, "__iter__"):
        raise ValueError(f"{where} is {rollouts!r:.60}: pass a list of stemma.Rollout")
    return list(rollouts)


def _fields_of(value, kind, where):
    if isinstance(value, dict):
        for name, item in value.items():
            if hasattr(item, "__next__"):
                value[name] = list(item)  # it gives its values once, and the same dict may be sent, planned and counted
        return dict(value)
    if isinstance(value, kind):
        return value.as_dict()
    raise ValueError(f"{where} is {value!r:.60}: pass a stemma.{kind.__name__}, or a dict in the trace's field names")


def _rollout_message(rollout, default_id, where, checked):
    fields, is_dict = _fields_of(rollout, Rollout, where), isinstance(rollout, dict)
    _require(fields, ("response_tokens",), where, is_dict)
    if fields.get("rollout_id") is None:
        fields["rollout_id"] = default_id
    message = _proto.Rollout()
    mask = fields.pop("response_mask", None)
    for name in _NUMBERS:
        if fields.get(name) is not None and not (is_dict and isinstance(fields[name], str)):
            with _named(f"{where}.{_name(name, is_dict)}"):
                fields[name] = _arrays.flat_numbers(fields[name])
    _fill(message, fields, where, is_dict)
    num_tokens = len(message.response_tokens) // 4
    if mask is not None:
        with _named(f"{where}.{_name('response_mask', is_dict)}"):
            is_text = is_dict and isinstance(mask, str)
            message.response_mask = _arrays.from_base64(mask, width=1) if is_text else _arrays.pack_bits(mask, num_tokens)
    for name in _NUMBERS:
        if fields.get(name) is None:
            continue
        with _named(f"{where}.{_name(name, is_dict)}"):
            if checked or not is_dict:
                _arrays.check_count(len(getattr(message, name)) // 4, num_tokens)
            if checked and not isinstance(fields[name], str):
                _arrays.check_fits(fields[name], getattr(message, name), message.response_mask)
            if checked and name in _LOG_PROBS:
                _arrays.check_log_probs(getattr(message, name), message.response_mask)
    return message


def _name(field, is_dict):
    return field if is_dict else API_NAMES.get(field, field)


def _require(fields, names, where, is_dict):
    for name in names:
        if fields.get(name) is None:
            raise ValueError(f"{where} lacks {_name(name, is_dict)}")


def _fill(message, fields, where, is_dict):
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            known = ", ".join(dict.fromkeys(_name(f.name, is_dict) for f in message.DESCRIPTOR.fields))
            raise ValueError(f"{where}.{name}: no such field; there are {known}")
        if value is None:
            continue
        other = field.containing_oneof and message.WhichOneof(field.containing_oneof.name)
        if other not in (None, name):
            raise ValueError(f"{where} has {other} and {name}: send one of the two")
        with _named(f"{where}.{_name(name, is_dict)}"):
            if field.type == field.TYPE_BYTES:
                value = _array_bytes(name, value, is_dict)
            elif field.type == field.TYPE_DOUBLE:
                value = _arrays.number(value)
            elif not isinstance(value, str):
                raise ValueError(f"is {value!r:.60}: pass a string")
            setattr(message, name, value)


@contextlib.contextmanager
def _named(path):
    """Puts the field's path before what a conversion says."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} {error}") from None


def _array_bytes(name, value, is_dict):
    is_tokens = name.endswith("_tokens")
    if is_dict and isinstance(value, str):
        return _arrays.from_base64(value, width=4)
    return _arrays.pack_int32(value) if is_tokens else _arrays.pack_float32(value)
