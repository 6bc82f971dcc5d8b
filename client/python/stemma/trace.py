"""Trace files (.jsonl): requests as they were sent, one a line, after a line that names the schema."""

import base64
import functools
import json
import math
import threading
from typing import Any, Dict, Iterator, List, Tuple

from . import _arrays, _json, _proto
from ._update import update_parts

SCHEMA = "stemma.trace.v1"
_MASK = "response_mask"
_LINE_BYTES_MAX = 1 << 30  # without its end, as common/trace/trace.h has it: no command reads a longer one


class TraceWriter:
    """Writes requests; give it to Client(recorder=...) to keep all that the client sends. Ids, waiting and the choice of
    schedule are the caller's, not the trace's: `header.request` is not kept. Close it, or use it in a `with`."""

    def __init__(self, path):
        """Begins a trace.

        path        of the file, which is overwritten
        """
        self._file = open(path, "w", encoding="utf-8")
        self._lock = threading.Lock()
        self._write({"schema": SCHEMA})

    def write(self, groups_to_send, loss=None, adam=None, *, old="auto", ref="auto", mini_batch=None, epochs=1, shuffle=False,
              seed=None, **header) -> None:
        """Writes one request, as Client.submit would send it, without a server.

        groups_to_send  the groups of Client.submit
        loss, adam, old, ref, mini_batch, epochs, shuffle, seed     as in Client.submit; old and ref may also be dicts in the
                    trace's names
        header      further header fields in the trace's names, e.g. return_log_probs=True; ppo_mini_batch_size and ppo_epochs
                    take the place of mini_batch and epochs
        """
        self.write_parts(update_parts(groups_to_send, loss, adam, old, ref, mini_batch, epochs, shuffle, seed, **header))

    def write_parts(self, parts) -> None:
        """Writes one request from the messages of its call, as the client has them.

        parts       header, groups, end
        """
        header = _set_fields(parts[0].update)
        header.pop("request", None)
        header.pop("num_groups", None)
        written = []
        for part in parts[1:-1]:
            if part.HasField("group"):
                group = part.group
                fields = {"uid": group.uid, "prompt_tokens": list(_arrays.unpack("i", group.prompt_tokens))}
                if group.HasField("stat_group"):
                    fields["stat_group"] = group.stat_group
                written.append({**fields, "rollouts": []})
            rollouts = written[-1]["rollouts"]
            for rollout in part.group.rollouts if part.HasField("group") else part.more.rollouts:
                rollouts.append(_rollout(rollout, f"groups[{len(written) - 1}].rollouts[{len(rollouts)}]"))
        self._write({"header": header, "groups": written})

    def close(self) -> None:
        """Ends the file."""
        self._file.close()

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(self, *_):
        self.close()

    def _write(self, value):
        line = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII
        _check_length(len(line))
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()


def read(path) -> Iterator[Tuple[Dict[str, Any], List[Dict[str, Any]]]]:
    """Yields (header dict, group dicts) of each request; ValueError names a line that is not one, or a field that no
    request has.

    path        of the file
    """
    begun = False
    for number, line in _json.lines(path):
        try:
            _check_length((len(line) if line.isascii() else len(line.encode())) - line.endswith("\n"))
            value = _json.loads(line)
            if not isinstance(value, dict):
                raise ValueError(f"must be a JSON object, is {type(value).__name__}")
            if not begun and value.get("schema") != SCHEMA:
                raise ValueError(f"the first line must hold \"schema\": \"{SCHEMA}\"")
            if begun and not (isinstance(value.get("header"), dict) and isinstance(value.get("groups"), list)):
                raise ValueError("must hold a header, which is an object, and groups, a list")
            _check_names(value, _FIELDS if begun else {"schema": None}, "")
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        if begun:
            yield value["header"], value["groups"]
        begun = True


def _check_length(num_bytes):
    """Refuses a line that no command reads."""
    if num_bytes > _LINE_BYTES_MAX:
        raise ValueError(f"the request's line is {num_bytes} bytes long, at most {_LINE_BYTES_MAX} are read: put fewer groups into "
                         "a request")


_FIELDS = {"header": _proto.UpdateHeader.DESCRIPTOR, "groups": _proto.PromptGroup.DESCRIPTOR}  # of a line


@functools.cache
def _fields_of(message):
    """Descriptors by name, None where a field is no message."""
    return {field.name: field.message_type for field in message.fields}


def _check_names(value, known, path):
    """Refuses what a misspelled name would lose in silence; what the values are is their readers' to check. `known`: as of
    _fields_of()."""
    for name, item in value.items():
        where = f"{path}.{name}" if path else name
        if name not in known:
            raise ValueError(f"{where}: unknown field{_json.hint(name, known)}")
        if item is None:
            raise ValueError(f"{where} is null: leave the field out")
        if known[name] is None:
            continue
        several = enumerate(item) if isinstance(item, list) else [(None, item)]
        for index, one in several:
            if isinstance(one, dict):
                _check_names(one, _fields_of(known[name]), where if index is None else f"{where}[{index}]")


def _rollout(message, where):
    num_tokens = len(message.response_tokens) // 4
    out = {}
    for field, value in message.ListFields():
        if field.name == _MASK:
            out[field.name] = _arrays.unpack_bits(value, num_tokens)
        elif field.name == "response_tokens":
            out[field.name] = list(_arrays.unpack("i", value))
        elif isinstance(value, bytes):
            numbers = _arrays.unpack("f", value)
            # JSON has no NaN, which may stand where the mask is 0: such an array is the base64 of its bytes.
            finite = all(map(math.isfinite, numbers))
            out[field.name] = [_short(x) for x in numbers] if finite else base64.b64encode(value).decode()
        else:
            out[field.name] = _finite(value, f"{where}.{field.name}")
    out.setdefault("response_tokens", [])
    return out


def _short(number):
    """9 digits give a float32 back; whole numbers need no point."""
    text = f"{number:.9g}"
    return int(text) if text.lstrip("-").isdigit() and text != "-0" else float(text)


def _set_fields(message, path=""):
    out = {}
    for field, value in message.ListFields():
        if field.message_type is not None:
            out[field.name] = _set_fields(value, f"{path}{field.name}.")
        elif field.enum_type is not None:
            out[field.name] = field.enum_type.values_by_number[value].name
        else:
            out[field.name] = _finite(value, f"{path}{field.name}")
    return out


def _finite(value, where):
    """The value; JSON has no infinite number and no NaN, and no server takes one here."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}: pass a finite number")
    return value
