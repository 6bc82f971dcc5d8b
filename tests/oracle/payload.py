"""The digest of a payload and the order of groups in an epoch, from their specifications in common/base/digest.h and
common/admission/mini_batches.h. Messages are read through protobuf's reflection; nothing of the product computes here.
"""

import hashlib
import struct

_MASK = 2**64 - 1


def _u64(value):
    return struct.pack("<Q", value)


def _text(value):
    data = value.encode() if isinstance(value, str) else value
    return _u64(len(data)) + data


def _single(field, value):
    if field.message_type is not None:
        return _walk(value)
    if field.type == field.TYPE_DOUBLE:
        return struct.pack("<d", value)
    return _text(value) if isinstance(value, (str, bytes)) else _u64(int(value))


def _walk(message):
    out = b""
    for field, value in message.ListFields():  # those present, by number
        out += struct.pack("<I", field.number)
        if field.message_type is not None and not hasattr(value, "ListFields"):  # repeated
            out += _u64(len(value)) + b"".join(_walk(item) for item in value)
        else:
            out += _single(field, value)
    return out + struct.pack("<I", 0)


def digest(parts):
    """64 hexadecimal digits of an UpdateActor call's messages: header, groups (and what continues them), end."""
    header = type(parts[0].update)()
    header.CopyFrom(parts[0].update)
    header.request.SetInParent()
    header.request.ClearField("request_id")
    header.request.ClearField("wait_ms")
    header.ClearField("trace_step")
    groups = {}  # by uid, in the order of coming
    for part in parts[1:-1]:
        source = part.group if part.HasField("group") else part.more
        if part.HasField("group"):
            has_stat_group = source.HasField("stat_group")
            groups[source.uid] = (_text(source.uid) + _text(source.prompt_tokens) + _u64(has_stat_group) +
                                  _text(source.stat_group))
        groups[source.uid] += b"".join(_walk(rollout) for rollout in source.rollouts)
    whole = _walk(header) + _u64(len(groups)) + b"".join(hashlib.sha256(group).digest() for group in groups.values())
    return hashlib.sha256(whole).hexdigest()


def fnv1a(text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 & _MASK
    return value


def split_mix(state):
    """The generator's numbers, from its state on."""
    while True:
        state = (state + 0x9e3779b97f4a7c15) & _MASK
        z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9 & _MASK
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb & _MASK
        yield z ^ (z >> 31)


def shuffled(count, payload_digest, seed, epoch):
    """The order of `count` groups in one epoch."""
    mixed = next(split_mix(next(split_mix(fnv1a(payload_digest))) ^ seed)) + epoch & _MASK
    numbers, order = split_mix(mixed), list(range(count))
    for left in range(count, 1, -1):
        chosen = next(numbers) % left
        order[left - 1], order[chosen] = order[chosen], order[left - 1]
    return order


def orders(parts):
    """The groups of each epoch in the order that they are trained in; None: as they came."""
    header, end = parts[0].update, parts[-1].end
    if not header.shuffle:
        return None
    epochs = header.ppo_epochs if header.HasField("ppo_epochs") else 1
    text = digest(parts)
    return [shuffled(end.num_groups, text, header.seed, epoch) for epoch in range(epochs)]
