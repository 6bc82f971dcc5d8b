"""The API's names in what the server refuses by the wire's. Private to this package.

What came as a Group, a Rollout or a parameter is told by its name there; what came as a dict has the wire's names already.
"""

import re

from .groups import API_NAMES as _OF_GROUPS

_OF_HEADERS = {"ppo_mini_batch_size": "mini_batch", "ppo_epochs": "epochs"}
_SOURCES = {"WEIGHTS": "policy", "CLIENT": "client", "ROLLOUT": "rollout", "ON_POLICY": "on_policy"}
_OF_GROUP = re.compile(r"groups\[(\d+)\]\.(?:rollouts\[(\d+)\]\.)?(\w+)")
# `loss` and `adam` are parameters too, and their fields have one name.
_PARAMETER = re.compile(r"\b(?:update|log_prob)\.(?!loss\b|adam\b)(?:request\.)?(\w+)(\.from\b|\.weights\b)?")
_HEADER_WORD = re.compile(rf"\b({'|'.join(_OF_HEADERS)})\b")
_UNREAD = re.compile(r"\bupdate\.(old|ref) from ([A-Z_]+) reads it, and that is \w+")
_SOURCE_WORD = re.compile(rf"\b({'|'.join(_SOURCES)})\b")


def in_fields(fields, message, parts, groups):
    """(fields, message) of a refusal, in the API's names.

    fields      [(path, what)]
    message     begins with the first of them, or is what it says
    parts       the messages that were sent
    groups      the list that they were made of
    """
    header = getattr(parts[0], parts[0].WhichOneof("part"))
    out = [(_path(path, groups), message if what == message else _text(path, what, header)) for path, what in fields]
    if not fields or fields[0][1] == message:
        path = fields[0][0] if fields else ""
        message = _text(path, message, header)
        return [(said, message) for said, _ in out], message
    return out, message.replace(" ".join(fields[0]), " ".join(out[0]))


def _path(path, groups):
    match = _OF_GROUP.match(path)
    if not match:
        return _PARAMETER.sub(lambda found: _OF_HEADERS.get(found[1], found[1]), path)
    if _is_dict(groups, match):
        return path
    return path[:match.start(3)] + _OF_GROUPS.get(match[3], match[3]) + path[match.end(3):]


def _is_dict(groups, match):
    """Whether the one that a field belongs to came as a dict."""
    owner = groups[int(match[1])] if int(match[1]) < len(groups) else None
    if match[2] is None or owner is None:
        return isinstance(owner, dict)
    rollouts = owner["rollouts"] if isinstance(owner, dict) else owner.rollouts
    known = isinstance(rollouts, (list, tuple)) and int(match[2]) < len(rollouts)
    return isinstance(rollouts[int(match[2])] if known else owner, dict)


def _text(path, what, header):
    what = _UNREAD.sub(lambda found: f'{found[1]}="{_SOURCES.get(found[2], found[2])}" reads it, and that is '
                       f"{_source(header, found[1])}", what)
    if path.startswith(("update.old", "update.ref")):
        what = _SOURCE_WORD.sub(lambda found: f'"{_SOURCES[found[1]]}"', what)
    what = _PARAMETER.sub(lambda found: _OF_HEADERS.get(found[1], found[1]), what)
    return _HEADER_WORD.sub(lambda found: _OF_HEADERS[found[1]], what)


def _source(header, name):
    """What the parameter `old` or `ref` was resolved to, as it is written."""
    if not header.HasField(name):
        return "None"
    source = getattr(header, name)
    word = type(source).DESCRIPTOR.fields_by_name["from"].enum_type.values_by_number[getattr(source, "from")].name
    if word == "WEIGHTS" and source.weights != "policy":
        return f'"checkpoint:{source.weights}"'
    return f'"{_SOURCES[word]}"'
