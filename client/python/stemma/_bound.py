"""What computing each shared prompt once would save, from lengths alone: `stemma.bound(...)`, `python -m stemma.bound`.

A trajectory computed in full runs P - 1 + R rows (P prompt tokens, R response tokens; the last response token predicts
nothing). A group computed with reuse runs P - 1 rows once and R rows for each rollout. Rollouts without a response are
not run. FLOPs count matrix products and attention, forward and backward, exactly; `stemma bound` counts the same.

A bound: time is saved at most in the ratio of FLOPs, and waves, copies and small matrices take their part of it.
"""

import argparse
import base64
import dataclasses
import json
import operator
import os
import sys
from typing import Optional

from . import _arrays, _json, trace
from .groups import Group, Rollout

_SIZES_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model_sizes.json")


@dataclasses.dataclass
class Bound:
    """Tokens and FLOPs of all groups, computed in full (dense) and with each prompt once (reuse).

    groups        of all requests
    rollouts      of all groups
    rollouts_run  those with a response
    tokens_dense  rows of every trajectory in full
    tokens_reuse  rows with each prompt once
    model         as it was given; None: no FLOPs
    flops_dense   forward and backward
    flops_reuse   the same, with each prompt once
    """

    groups: int = 0
    rollouts: int = 0
    rollouts_run: int = 0
    tokens_dense: int = 0
    tokens_reuse: int = 0
    model: Optional[str] = None
    flops_dense: Optional[float] = None
    flops_reuse: Optional[float] = None

    @property
    def tokens_saved(self):
        """Rows that reuse does not compute."""
        return self.tokens_dense - self.tokens_reuse

    @property
    def token_ratio(self):
        """How many times fewer tokens reuse computes; None where nothing runs."""
        return self.tokens_dense / self.tokens_reuse if self.tokens_reuse else None

    @property
    def flops_ratio(self):
        """How many times fewer FLOPs: no run saves more time; None without a model."""
        return self.flops_dense / self.flops_reuse if self.flops_reuse else None

    def as_dict(self):
        """All of it by name, as `stemma bound -o json` prints it."""
        return {"groups": self.groups, "rollouts": self.rollouts, "rollouts_run": self.rollouts_run,
                "tokens_dense": self.tokens_dense, "tokens_reuse": self.tokens_reuse, "tokens_saved": self.tokens_saved,
                "token_ratio": self.token_ratio, "model": self.model, "flops_dense": self.flops_dense,
                "flops_reuse": self.flops_reuse, "flops_ratio": self.flops_ratio}


def bound(groups, model=None) -> Bound:
    """What computing each shared prompt once would save, from lengths alone. docs/bound.md describes the files.

    groups  the path of a trace or of a rollouts.jsonl; or a list or iterator of Groups, of dicts in the trace's field names,
            or of (P, [R, ...]) pairs, P and each R a length or a list or array of tokens
    model   a published size ("qwen3-8b"), a model directory or its config.json; None: tokens only
    """
    if isinstance(groups, (str, os.PathLike)):
        groups = _read(os.fspath(groups))
    elif isinstance(groups, (Group, dict)):
        raise ValueError(f"groups is one {type(groups).__name__}: pass a list, [group]")
    elif not hasattr(groups, "__iter__"):
        raise ValueError(f"groups is {groups!r:.60}: pass a path, or a list of stemma.Group or of (prompt, responses) pairs")
    shape = None if model is None else _shape(os.fspath(model))
    result = Bound(model=None if model is None else os.fspath(model))
    flops_dense = flops_reuse = 0
    for index, group in enumerate(groups):
        prompt, responses = _pair(group, f"groups[{index}]")
        prompt = _length(prompt, f"groups[{index}]: prompt", least=1)
        responses = [_length(r, f"groups[{index}]: response {i}") for i, r in enumerate(responses)]
        run = [r for r in responses if r > 0]
        prefix = prompt - 1
        result.groups += 1
        result.rollouts += len(responses)
        result.rollouts_run += len(run)
        result.tokens_dense += len(run) * prefix + sum(run)
        result.tokens_reuse += (prefix if run else 0) + sum(run)
        if shape and run:
            suffixes = sum(shape.suffix_flops(prefix, rows) for rows in run)
            flops_dense += len(run) * shape.prefix_flops(prefix) + suffixes
            flops_reuse += shape.prefix_flops(prefix) + suffixes
    if shape:
        result.flops_dense, result.flops_reuse = float(flops_dense), float(flops_reuse)
    return result


# The largest sizes that the server reads of a config (common/model/model_config.cc).
_SIZES_MAX = {"hidden_size": 1 << 20, "num_hidden_layers": 1 << 14, "intermediate_size": 1 << 22, "vocab_size": (1 << 31) - 1,
              "moe_intermediate_size": 1 << 22, "num_experts": 1 << 12, "num_local_experts": 1 << 12, "num_experts_per_tok": 1 << 12,
              "num_attention_heads": 1 << 16, "num_key_value_heads": 1 << 16, "head_dim": 1 << 12, "max_position_embeddings": (1 << 31) - 1}
_PARAMETERS_MAX = 1 << 50
_EXPERTS_MAX = 1 << 18  # of all layers


class _Shape:
    """A model by the sizes that FLOPs depend on, from a Hugging Face config."""

    def __init__(self, config, source):
        self._source = source
        family = config.get("model_type")
        if family not in ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral"):
            raise ValueError(f"{source}: model_type is {family!r}, must be one of llama, qwen2, qwen3, qwen3_moe, mistral")
        self.hidden = self._size(config, "hidden_size")
        self.layers = self._size(config, "num_hidden_layers")
        self.experts, self.router, mlp = self._mlps(config, family)
        self.vocab = self._size(config, "vocab_size")
        heads = self._size(config, "num_attention_heads")
        head = self._head_size(config, family, heads)
        if head % 2:
            raise ValueError(f"{source}: head_dim is {head}, which is odd: rotary positions need pairs")
        self.queries = heads * head
        self.keys = self._key_heads(config, family, heads) * self.queries // heads
        attention = self.hidden * (2 * self.queries + 2 * self.keys)
        used = self._size(config, "num_experts_per_tok") if self.router else 1
        if used > self.experts:
            raise ValueError(f"{source}: num_experts_per_tok is {used}, more than the {self.experts} experts that there are")
        self.layer_weights = attention + self.router + used * mlp  # that a token is multiplied with
        self.layer_size = attention + self.router + self.experts * mlp
        self._check(config, family, head)

    def _check(self, config, family, head):
        """Refuses what the server does not train, and FLOPs do not show."""
        self._size(config, "max_position_embeddings")
        activation, tied = config.get("hidden_act"), config.get("tie_word_embeddings")
        if activation not in (None, "silu"):
            raise ValueError(f"{self._source}: hidden_act is {_arrays.shown(activation)}, must be silu")
        if tied is not None and not isinstance(tied, bool):
            raise ValueError(f"{self._source}: tie_word_embeddings is {_arrays.shown(tied)}, must be true or false")
        own = {"qwen2": self.queries + 2 * self.keys, "qwen3": 2 * head, "qwen3_moe": 2 * head}.get(family, 0)
        vectors = 2 * self.hidden + own  # norms and biases
        count = (1 if tied else 2) * self.vocab * self.hidden + self.layers * (self.layer_size + vectors) + self.hidden
        if count > _PARAMETERS_MAX:
            raise ValueError(f"{self._source}: hidden_size is {self.hidden}: the sizes make {count} parameters, at most "
                             f"{_PARAMETERS_MAX} are read")

    def _mlps(self, config, family):
        """(MLPs of a layer, weights of their router, weights of each MLP)."""
        if family != "qwen3_moe":
            return 1, 0, 3 * self.hidden * self._size(config, "intermediate_size")
        four, five = config.get("num_experts"), config.get("num_local_experts")
        if None not in (four, five) and four != five:
            raise ValueError(f"{self._source}: num_experts differs from num_local_experts, which means the same; keep one of them")
        name = "num_experts" if five is None else "num_local_experts"
        experts = self._size(config, name)
        if experts * self.layers > _EXPERTS_MAX:
            raise ValueError(f"{self._source}: {name} is {experts}, in each of {self.layers} layers: more than {_EXPERTS_MAX} in all")
        self._check_experts(config)
        return experts, self.hidden * experts, 3 * self.hidden * self._size(config, "moe_intermediate_size")

    def _check_experts(self, config):
        """Refuses what the server does not train of them: other layers among those with experts, a loss of the router."""
        for name, taken in (("decoder_sparse_step", 1), ("mlp_only_layers", []), ("output_router_logits", False)):
            value = config.get(name)
            if value is not None and (type(value) is not type(taken) or value != taken):
                raise ValueError(f"{self._source}: {name} is {_arrays.shown(value)}, must be {json.dumps(taken)}")
        sums_to_one = config.get("norm_topk_prob")
        if sums_to_one is not None and not isinstance(sums_to_one, bool):
            raise ValueError(f"{self._source}: norm_topk_prob is {_arrays.shown(sums_to_one)}, must be true or false")

    # What a config leaves out, and what null means there, is as the server reads it (common/model/model_config.cc): transformers
    # has another number for each family.
    def _head_size(self, config, family, heads):
        if family == "qwen3" and "head_dim" not in config:
            return 128
        if config.get("head_dim") is None and self.hidden % heads:
            raise ValueError(f"{self._source}: num_attention_heads is {heads}, which does not divide hidden_size, {self.hidden}, and "
                             "head_dim is missing")
        return self._size(config, "head_dim", self.hidden // heads)

    def _key_heads(self, config, family, heads):
        may_lack = family == "llama" or "num_key_value_heads" in config
        count = self._size(config, "num_key_value_heads", heads if may_lack else None)
        if heads % count:
            raise ValueError(f"{self._source}: num_key_value_heads is {count}, which does not divide num_attention_heads, {heads}")
        return count

    def _size(self, config, name, default=None):
        value = config.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _SIZES_MAX[name]:
            raise ValueError(f"{self._source}: {name} is {_arrays.shown(value)}, must be a whole number from 1 to {_SIZES_MAX[name]}")
        return value

    # 2 FLOPs per multiply-add forward and 4 backward: 6 for each weight and row; attention 12 for each query entry and
    # (query, key) pair. Whole numbers: exact whatever their order.
    def prefix_flops(self, rows):
        layer = 6 * self.layer_weights * rows + 6 * self.queries * rows * (rows + 1)
        return (self.layers - 1) * layer + 12 * self.hidden * self.keys * rows  # the last layer: keys and values only

    def suffix_flops(self, prefix, rows):
        pairs_twice = 2 * rows * prefix + rows * (rows + 1)
        layer = 6 * self.layer_weights * rows + 6 * self.queries * pairs_twice
        return self.layers * layer + 6 * self.hidden * self.vocab * rows


def _shape(model):
    path = os.path.join(model, "config.json") if os.path.isdir(model) else model
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return _Shape(_object(file.read(), path), path)
    with open(_SIZES_FILE, encoding="utf-8") as file:
        sizes = json.load(file)
    name = model.rsplit("/", 1)[-1].lower()
    if name in sizes:
        return _Shape(sizes[name], name)
    raise ValueError(f"model {model!r} is neither a file or directory here nor a size that is known"
                     f"{_json.hint(name, sizes)}; sizes: {', '.join(sorted(sizes))}")


def _object(text, source):
    try:
        value = _json.loads(text)
    except ValueError as error:
        raise ValueError(f"{source}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{source}: must be a JSON object, is {type(value).__name__}")
    return value


def _pair(group, where):
    """(P, [R, ...]) of a Group, of a dict in the trace's names, or of such a pair."""
    if isinstance(group, dict):
        if group.get("prompt_tokens") is None:
            raise ValueError(f"{where} lacks prompt_tokens: a dict has the trace's field names")
        return _trace_lengths(group, where)
    pair = (group.prompt, group.rollouts) if isinstance(group, Group) else group
    if isinstance(pair, (str, bytes)) or not hasattr(pair, "__len__") or len(pair) != 2:
        raise ValueError(f"{where} is {group!r:.60}: pass a stemma.Group, or a pair of a prompt and a list of responses")
    prompt, responses = pair
    if isinstance(responses, (str, bytes, dict, Rollout)) or not _arrays.is_array(responses):
        what = "rollouts" if isinstance(group, Group) else "responses"
        raise ValueError(f"{where}: {what} is {responses!r:.60}: pass a list of them")
    return prompt, [_response(r, f"{where}: response {i}") for i, r in enumerate(responses)]


def _response(value, where):
    """The tokens or the length of what stands for one response."""
    if isinstance(value, Rollout):
        return value.tokens
    return _trace_length(value.get("response_tokens", []), f"{where}.response_tokens") if isinstance(value, dict) else value


def _length(value, what, least=0):
    try:  # whole numbers of any library; an array with one element passes for a number in some
        length = _array_length(value, what) if _arrays.is_array(value) else operator.index(value)
    except TypeError:
        length = _array_length(value, what)
    if isinstance(value, bool) or not least <= length < 1 << 31:
        raise ValueError(f"{what} is {value!r}: must be a length from {least} up, or a list of tokens")
    return length


def _array_length(value, what):
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__len__"):
        raise ValueError(f"{what} is {str(value)[:80]!r}: must be a length or a list of tokens")
    if getattr(value, "ndim", 1) > 1:
        raise ValueError(f"{what} has shape {tuple(value.shape)}: must be a length or a flat list of tokens; take one row of it")
    return len(value)


def _trace_lengths(group, where):
    """(P, [R, ...]) of a trace's group."""
    if not isinstance(group, dict) or not isinstance(group.get("rollouts", []), list):
        raise ValueError(f"{where} is {str(group)[:80]!r}: must be an object with prompt_tokens and a list of rollouts")
    responses = []
    for index, rollout in enumerate(group.get("rollouts", [])):
        rollout = rollout.as_dict() if isinstance(rollout, Rollout) else rollout
        if not isinstance(rollout, dict):
            raise ValueError(f"{where}.rollouts[{index}] is {str(rollout)[:80]!r}: must be an object")
        responses.append(_trace_length(rollout.get("response_tokens", []), f"{where}.rollouts[{index}].response_tokens"))
    return _trace_length(group.get("prompt_tokens", []), f"{where}.prompt_tokens"), responses


def _trace_length(value, where):
    """Tokens of an array in a trace: a list, or the base64 of int32. A dict of a program may hold any array."""
    if not isinstance(value, dict) and _arrays.is_array(value):
        return _array_length(value, where)
    try:
        data = base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        data = None
    if data is None or len(data) % 4:
        raise ValueError(f"{where} is {str(value)[:80]!r}: must be a list of tokens, or the base64 of their bytes")
    return len(data) // 4


def _read(path):
    number, first = next(_json.lines(path), (0, None))
    if first is None:
        raise ValueError(f"{path}: is empty")
    if "schema" not in _object(first, f"{path}:{number}"):
        return _read_rollouts(path)
    groups, requests = [], 0  # lengths alone: a trace may be larger than memory
    for requests, (_, sent) in enumerate(trace.read(path), 1):
        groups += [_trace_lengths(group, f"{path}: request {requests}: groups[{index}]") for index, group in enumerate(sent)]
    if not requests:
        raise ValueError(f"{path}: holds no request")
    return groups


def _read_rollouts(path):
    """One JSON object a line: {"group": id, "prompt": P, "response": R} for a rollout, or with "responses": [R, ...] for
    several; P and R are lengths or lists of tokens. Lines of one group share its prompt; other keys are passed over."""
    groups, by_id = [], {}
    for number, text in _json.lines(path):
        where = f"{path}:{number}"
        line = _object(text, where)
        if ("response" in line) == ("responses" in line):
            raise ValueError(f"{where}: must hold either \"response\" (one rollout) or \"responses\" (a list)")
        several = line.get("responses")
        if "responses" in line and not isinstance(several, list):
            raise ValueError(f"{where}: responses must be a list of lengths or of lists of tokens")
        responses = [line["response"]] if several is None else several
        responses = [_length(r, f"{where}: response") for r in responses]
        group = line.get("group")
        if group is None and several is None:
            raise ValueError(f"{where}: group is missing: rollouts of one group share its prompt")
        if group is not None and not _is_id(group):
            raise ValueError(f"{where}: group is {group!r}, must be a text or a whole number")
        if group is not None and group in by_id:
            known, first = by_id[group]
            if line.get("prompt", known[0]) != known[0]:
                raise ValueError(f"{where}: group {group!r} has another prompt than on line {first}")
            known[1].extend(responses)
            continue
        if "prompt" not in line:
            raise ValueError(f"{where}: prompt is missing: a length or a list of tokens")
        _length(line["prompt"], f"{where}: prompt", least=1)
        groups.append((line["prompt"], responses))
        if group is not None:
            by_id[group] = (groups[-1], number)
    return groups


def _is_id(value):
    return isinstance(value, str) or (not isinstance(value, bool) and isinstance(value, int) and -1 << 63 <= value < 1 << 64)


def _short(number, unit=""):
    """Three digits and a letter for thousands, millions, ...: 1.31M."""
    if number is None:
        return "-"
    value, letters = float(number), ["", "k", "M", "G", "T", "P", "E", "Z"]
    while value >= 999.5 and len(letters) > 1:
        value, letters = value / 1000, letters[1:]
    return f"{value:.3g}{letters[0]}{unit}"


def _table(result):
    def row(what, dense, reuse):
        ratio = f"{dense / reuse:.2f} times less" if reuse else "-"
        return f"{what:8}{_short(dense):>10}{_short(reuse):>12}  {ratio}"

    lines = [f"{result.groups} groups, {result.rollouts} rollouts ({result.rollouts_run} with a response)",
             f"{'':8}{'in full':>10}{'with reuse':>12}", row("tokens", result.tokens_dense, result.tokens_reuse)]
    if result.model is not None:
        lines.append(row("FLOPs", result.flops_dense, result.flops_reuse) + f" ({result.model})")
    return "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m stemma.bound", description=(
        "Say from lengths alone what computing each shared prompt once would save."))
    parser.add_argument("file", metavar="FILE", help="a trace, or a rollouts.jsonl")
    parser.add_argument("--model", metavar="MODEL", help="a size (qwen3-8b), a model directory or its config.json")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    try:
        result = bound(options.file, options.model)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result.as_dict()) if options.output == "json" else _table(result))
    return 0
