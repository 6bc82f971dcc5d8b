"""Trace files (.jsonl): requests as they were sent, one a line, after a line that names the schema."""

import base64
import contextlib
import functools
import json
import math
import os
import threading
from typing import Any, Dict, Iterator, List, Tuple

from . import _arrays, _json, _proto
from ._recording import Line, warn
from ._update import update_parts

SCHEMA = "stemma.trace.v1"
_MASK = "response_mask"
_NUMBERS_TOKENS_MAX = 1 << 16  # of prompts and responses; a larger request's line is for programs
_LINE_BYTES_MAX = 1 << 30  # without its end, as common/trace/trace.h has it: no command reads a longer one


class TraceWriter:
    """Writes requests; give it to Client(recorder=...) to keep all that the client sends. Ids, waiting and the choice of
    schedule are the caller's, not the trace's: `header.request` is not kept. Arrays are lists of numbers; in a request of more
    than 65,536 tokens each is the base64 of its bytes, which takes a fraction of the time and memory and reads back the same.
    Close it, or use it in a `with`. Each process makes its own, of another file: in one that was forked off, write is a
    ValueError."""

    def __init__(self, path: Any) -> None:
        """Begins a trace.

        path        of the file, which is overwritten
        """
        self._file = open(path, "wb", buffering=0)  # a buffer would write later what a failed line left in it
        self._lock = threading.RLock()  # a signal's handler may write while its thread does
        self._owner_pid = os.getpid()
        self._lines = []  # (pieces, entry): the one that is being written, and those that handlers brought meanwhile
        self._entry = _whole(0)  # the last that was begun; where it has no end, a part of its line may lie behind the others
        self._write([_dumps({"schema": SCHEMA})], _Entry(self._lines))

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

    def write_parts(self, parts, on_failure=None) -> None:
        """Writes one request from the messages of its call, as the client has them.

        parts       header, groups, end
        on_failure  where a signal's handler writes in the middle of its thread's line, the thread writes the handler's next;
                    on_failure(error) is called if that fails. None: a warning says so
        """
        entries = on_failure.entries if isinstance(on_failure, Line) else {}
        known = entries.get(id(self._lines))
        if known is not None and known.is_kept():
            return  # another try brought it, which was interrupted, or could not write to another trace
        header = _set_fields(parts[0].update)
        header.pop("request", None)
        header.pop("num_groups", None)
        as_numbers = _num_tokens(parts) <= _NUMBERS_TOKENS_MAX
        pieces, num_groups, num_rollouts = [f'{{"header":{_dumps(header)},"groups":['], 0, 0
        for part in parts[1:-1]:
            if part.HasField("group"):
                pieces += ["]}," if num_groups else "", _group(part.group, as_numbers).removesuffix("]}")]
                num_groups, num_rollouts = num_groups + 1, 0
            for rollout in part.group.rollouts if part.HasField("group") else part.more.rollouts:
                where = f"groups[{num_groups - 1}].rollouts[{num_rollouts}]"
                pieces += ["," if num_rollouts else "", _dumps(_rollout(rollout, as_numbers, where))]
                num_rollouts += 1
        entry = _Entry(self._lines, on_failure or _warn_of)
        entries[id(self._lines)] = entry  # which holds that list: no other trace gets its id()
        self._write([*pieces, "]}]}" if num_groups else "]}"], entry)

    def close(self) -> None:
        """Ends the file. A line that another thread is writing comes to its end first; one that the caller's own thread is writing,
        where a signal's handler closes, is taken back. A process that was forked off leaves the file to the other."""
        if os.getpid() == self._owner_pid:
            with self._lock:
                self._try_cut()
                self._file.close()
        else:  # whose thread may hold the lock here for ever, and whose line would be cut
            self._file.close()

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _write(self, pieces, entry):
        """Writes a line, or nothing of it. A large one is not joined: it would be held twice. Of a signal's handler, which finds
        its thread in the middle of a line, the thread writes it next.

        pieces  of it, ASCII
        entry   told of a handler's that fails
        """
        if os.getpid() != self._owner_pid:  # each would count its own lines alone, and cut the other's
            raise ValueError(f"this trace in {self._file.name} is of process {self._owner_pid}, from which this one was forked off: "
                             "make a stemma.trace.TraceWriter in each process, with a file of its own")
        _check_length(sum(map(len, pieces)))
        with self._lock:
            if self._lines:
                self._lines.append((pieces, entry))
                return
            failed = []
            try:
                self._lines.append((pieces, entry))
                while self._lines:
                    try:
                        self._write_line(*self._lines[0])
                    except BaseException as error:
                        failed.append((self._lines[0][1], error))
                    del self._lines[0]
            except BaseException as error:  # an interrupt between two lines
                failed += [(left, error) for left in (entry, *(waiting for _, waiting in self._lines))]
            finally:
                self._lines.clear()
        _tell(failed, entry)

    def _write_line(self, pieces, entry):
        self._cut()
        entry.begin = self._entry.end
        end = entry.begin + sum(map(len, pieces)) + 1
        try:
            self._entry = entry
            for piece in (*pieces, "\n"):
                left = memoryview(piece.encode())
                while left:
                    left = left[self._file.write(left):]  # a disk that is nearly full takes a part
            entry.end = end  # in one step: whatever interrupts finds a line that is whole, or one that is not
            if entry.is_cut:  # whoever closed the file in the meantime has cut it
                raise ValueError("the trace was closed before the end of the line")
        except BaseException:
            self._try_cut()
            raise

    def _cut(self):
        """Takes back what was written of a line that did not come to its end; OSError where no file can be cut, as a pipe."""
        if self._entry.end is None:
            self._entry.is_cut = True
            os.ftruncate(self._file.fileno(), self._entry.begin)
            self._file.seek(self._entry.begin)
            self._entry = _whole(self._entry.begin)

    def _try_cut(self):
        """Cuts where the file can be cut, and is open."""
        with contextlib.suppress(OSError, ValueError):
            self._cut()


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


class _Entry:
    """Where one line stands in the file of a trace."""

    def __init__(self, lines, on_failure=None):
        """lines: those that the trace has yet to write. on_failure: as for write_parts."""
        self.begin = self.end = None  # bytes of the file before it; and with it, once it is whole
        self.is_cut = False  # whether it was taken back before it was whole
        self.on_failure, self._lines = on_failure, lines

    def is_whole(self):
        """Whether the line is in the file."""
        return self.end is not None and not self.is_cut

    def is_kept(self):
        """Whether it is, or will be written or its failure told."""
        waits = any(entry is self for _, entry in tuple(self._lines))  # before the end is looked at, which another thread may reach
        return not self.is_cut and (waits or self.end is not None)


def _whole(end):
    """What stands before a first line: lines that end there."""
    entry = _Entry([])
    entry.begin = entry.end = end
    return entry


def _tell(failed, own):
    """Tells each handler what kept its line from being written, and raises what ends the process, or else the own line's error.

    failed  (entry, error) of each
    own     the entry of the caller, which is not told
    """
    try:
        for entry, error in failed:
            if entry is not own and not entry.is_kept():
                entry.on_failure(error)
    finally:
        raised = [error for entry, error in failed if entry is own or not isinstance(error, Exception)]
        if raised:
            raise min(raised, key=lambda error: isinstance(error, Exception))


def _warn_of(error):
    """Warns of a line that a signal's handler brought, and that was not written after it."""
    warn(f"a request that a signal's handler wrote to a trace could not be written: {type(error).__name__}: {error}", stacklevel=1)


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


def _dumps(value):
    return json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII


def _num_tokens(parts):
    """Tokens of a request's prompts and responses."""
    num_bytes = 0
    for part in parts[1:-1]:
        message = part.group if part.HasField("group") else part.more
        num_bytes += sum(len(rollout.response_tokens) for rollout in message.rollouts)
        num_bytes += len(message.prompt_tokens) if part.HasField("group") else 0
    return num_bytes // 4


def _group(message, as_numbers):
    """The JSON of a group without its rollouts."""
    fields = {"uid": message.uid, "prompt_tokens": _tokens(message.prompt_tokens, as_numbers)}
    if message.HasField("stat_group"):
        fields["stat_group"] = message.stat_group
    return _dumps({**fields, "rollouts": []})


def _rollout(message, as_numbers, where):
    """A rollout's fields. as_numbers: arrays are lists, else base64."""
    num_tokens = len(message.response_tokens) // 4
    out = {}
    for field, value in message.ListFields():
        if field.name == "response_tokens":
            out[field.name] = _tokens(value, as_numbers)
        elif field.name == _MASK:
            out[field.name] = _arrays.unpack_bits(value, num_tokens) if as_numbers else _base64(value)
        elif isinstance(value, bytes):
            out[field.name] = _floats(value, as_numbers)
        else:
            out[field.name] = _finite(value, f"{where}.{field.name}")
    out.setdefault("response_tokens", [])
    return out


def _tokens(value, as_numbers):
    return list(_arrays.unpack("i", value)) if as_numbers else _base64(value)


def _floats(value, as_numbers):
    if not as_numbers:
        return _base64(value)
    numbers = _arrays.unpack("f", value)
    # JSON has no NaN, which may stand where the mask is 0: such an array is the base64 of its bytes.
    return [_short(x) for x in numbers] if all(map(math.isfinite, numbers)) else _base64(value)


def _base64(value):
    return base64.b64encode(value).decode()


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
