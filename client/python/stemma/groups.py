"""Prompt groups: what a user builds, and how they become messages.

Arrays are lists or anything numpy can read (arrays, tensors); a string is the base64 of the wire bytes. On the wire they
are little-endian int32 and float32, masks are bits, least significant first.
"""

import array
import base64
import dataclasses
import sys
from typing import Any, List, Optional

from . import _proto

MESSAGE_BYTES_MAX = 4 << 20  # a larger group continues in `more` messages


@dataclasses.dataclass
class Rollout:
    tokens: Any                       # response tokens
    advantage: Any = None             # one number, or one for each token
    reward: Optional[float] = None    # read when no advantage is sent
    mask: Any = None                  # 0/1 for each token; None: all ones
    old_log_probs: Any = None
    rollout_log_probs: Any = None
    ref_log_prob: Any = None
    rollout_is_weights: Any = None
    loss_weights: Any = None
    rollout_id: Optional[str] = None  # None: "<uid>/<index>"
    sample_id: Optional[str] = None

    def as_dict(self):
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["response_tokens"] = fields.pop("tokens")
        fields["response_mask"] = fields.pop("mask")
        if fields["advantage"] is not None and _is_array(fields["advantage"]):
            fields["token_advantages"] = fields.pop("advantage")
        return {k: v for k, v in fields.items() if v is not None}


@dataclasses.dataclass
class Group:
    uid: str
    prompt: Any                       # all prompt tokens
    rollouts: List[Rollout]
    stat_group: Optional[str] = None  # the unit of advantages; None: the group itself

    def as_dict(self):
        fields = {"uid": self.uid, "prompt_tokens": self.prompt, "rollouts": self.rollouts}
        return fields if self.stat_group is None else {**fields, "stat_group": self.stat_group}


def parts(header_name, header, groups, message_bytes_max=MESSAGE_BYTES_MAX):
    """The messages of one call: header, groups (cut where a message would grow too large), end. A cross_entropy rollout
    without loss_weights gets ones: the server takes none for granted."""
    fill_weights = header_name == "update" and header.loss.loss_mode == "cross_entropy"
    out = [_proto.GroupPart(**{header_name: header})]
    num_rollouts = 0
    for index, group in enumerate(groups):
        messages, count = _group_messages(index, group, message_bytes_max, fill_weights)
        out += messages
        num_rollouts += count
    end = _proto.GroupPart()
    end.end.num_groups, end.end.num_rollouts = len(groups), num_rollouts
    return out + [end]


def _group_messages(index, group, message_bytes_max, fill_weights):
    fields = dict(group if isinstance(group, dict) else group.as_dict())
    where = f"groups[{index}]"
    rollouts = list(fields.pop("rollouts", ()))
    part = _proto.GroupPart()
    target = part.group
    _require(fields, ("uid", "prompt_tokens"), where)
    _fill(target, fields, where)
    out, size = [part], target.ByteSize()
    for r, rollout in enumerate(rollouts):
        message = _rollout_message(rollout, f"{fields['uid']}/{r}", f"{where}.rollouts[{r}]")
        if fill_weights and not message.loss_weights:
            message.loss_weights = pack_float32([1.0] * (len(message.response_tokens) // 4))
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


def _rollout_message(rollout, default_id, where):
    fields = dict(rollout if isinstance(rollout, dict) else rollout.as_dict())
    _require(fields, ("response_tokens",), where)
    fields.setdefault("rollout_id", default_id)
    message = _proto.Rollout()
    _fill(message, fields, where)
    mask = fields.get("response_mask")
    if mask is not None and not isinstance(mask, str) and len(mask) not in (0, len(message.response_tokens) // 4):
        raise ValueError(f"{where}.response_mask has {len(mask)} entries for {len(message.response_tokens) // 4} tokens")
    return message


def _require(fields, names, where):
    for name in names:
        if name not in fields:
            raise ValueError(f"{where} lacks {name}")


def _fill(message, fields, where):
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise ValueError(f"{where}.{name}: no such field")
        if value is None:
            continue
        try:
            setattr(message, name, _encode(name, value) if field.type == field.TYPE_BYTES else _scalar(field, value))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{where}.{name}: {error}") from None


def _scalar(field, value):
    return float(value) if field.type == field.TYPE_DOUBLE else value


def _encode(name, value):
    if isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if name == "response_mask":
        return pack_bits(value)
    return pack_int32(value) if name.endswith("_tokens") else pack_float32(value)


def _is_array(value):
    return isinstance(value, (list, tuple, str)) or getattr(value, "ndim", 0) > 0 or isinstance(value, array.array)


def pack_int32(values):
    return _pack("i", "<i4", "iu", values)


def pack_float32(values):
    return _pack("f", "<f4", "fiu", values)


def _pack(code, dtype, kinds, values):
    if hasattr(values, "__array__"):
        import numpy

        if hasattr(values, "detach"):
            values = values.detach().cpu()  # a tensor
        values = numpy.asarray(values)
        if values.ndim != 1 or (values.dtype.kind not in kinds and values.size):
            raise ValueError(f"a one-dimensional array of {'integers' if code == 'i' else 'numbers'} is wanted, "
                             f"not {values.dtype} of shape {values.shape}")
        if code == "i" and values.size and (values.min() < -2**31 or values.max() >= 2**31):
            raise ValueError("an entry does not fit int32")
        return values.astype(dtype).tobytes()
    packed = array.array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def pack_bits(values):
    """0/1 per token -> bits, least significant first."""
    out = bytearray((len(values) + 7) // 8)
    for i, value in enumerate(values):
        if int(value) not in (0, 1) or int(value) != value:
            raise ValueError(f"a mask holds 0 and 1, entry {i} is {value}")
        out[i >> 3] |= int(value) << (i & 7)
    return bytes(out)


def unpack_bits(data, count):
    return [data[i >> 3] >> (i & 7) & 1 for i in range(count)]


def unpack(code, data):
    """array.array of little-endian wire bytes; code as in the array module: "i", "f", "d"."""
    out = array.array(code)
    out.frombytes(data)
    if sys.byteorder == "big":
        out.byteswap()
    return out
