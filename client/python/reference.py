#!/usr/bin/env python3
"""Writes the reference of docs/python.md, below its marker, from the package's signatures and docstrings; a test compares the
two. Run it after a change of the client's API.

A docstring is a sentence, more text, then lines `name    what it is` that may continue further to the right.
"""

import dataclasses
import inspect
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))
import stemma  # noqa: E402
import stemma.verl  # noqa: E402

PAGE = ROOT.parent.parent / "docs" / "python.md"
MARKER = "<!-- From here on written by client/python/reference.py. -->\n"
SECTIONS = [
    ("Calling a server", ["Client", "Tls", "Future", "LocalServer"]),
    ("What is sent", ["Group", "Rollout", "LossConfig", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "importance_sampling",
                      "reinforce", "cross_entropy", "AdamW", "adamw", "constant", "linear", "cosine"]),
    ("What comes back", ["UpdateResult", "StepResult", "RolloutLogProbs", "Verification", "ParameterError", "Checkpoint", "LoadedCheckpoint", "Export"]),
    ("Errors", ["StemmaError", "LineageLostError", "RequestInterrupted"]),
    ("Before a server: what reuse would save", ["bound", "Bound"]),
    ("Traces: `stemma.trace`", ["trace.TraceWriter", "trace.read"]),
    ("verl: `stemma.verl`", ["verl.loss_from_config", "verl.ActorUpdate", "verl.groups_from_tensordict",
                             "verl.groups_from_dataproto", "verl.log_probs",
                             "verl.groups_for_log_probs", "verl.padded_log_probs", "verl.metrics"]),
]
_ENTRY = re.compile(r"^(\w+(?:, \w+)*)(?: {2,}| (?=[\"{]))(\S.*)$")


def resolve(name):
    value = stemma
    for part in name.split("."):
        value = getattr(value, part)
    return value


def public_members(cls):
    """(name, member) of the public methods and properties of a class and its private bases, in the order of the source."""
    bases = [base for base in cls.__mro__[1:] if base.__module__.startswith("stemma._")]
    for name, member in [item for owner in (cls, *bases) for item in vars(owner).items()]:
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, member


def entries(docstring):
    """(text before the entries, [(names, what)])."""
    text, found = [], []
    for line in inspect.cleandoc(docstring or "").splitlines():
        match = _ENTRY.match(line)
        if match:
            found.append([match.group(1), match.group(2)])
        elif found and line.startswith("    "):
            found[-1][1] += " " + line.strip()
        elif found and line:
            raise ValueError(f"{line!r} follows the entries of a docstring")
        else:
            text.append(line)
    return "\n".join(text).strip(), found


def documented(docstring):
    """Names that the entries of a docstring describe."""
    return {name for names, _ in entries(docstring)[1] for name in names.split(", ")}


def _signature(name, function, drop_self):
    parameters = list(inspect.signature(function).parameters.values())[1 if drop_self else 0:]
    return f"{name}{inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])}"


def _escaped(text):
    return re.sub(r"(?<!`)<(\w+)>", r"\<\1\>", text)


def _body(docstring):
    text, found = entries(docstring)
    lines = [_escaped(text)] if text else []
    if found:
        lines.append("\n".join(f"* {', '.join(f'`{n}`' for n in names.split(', '))}: {_escaped(what)}" for names, what in found))
    return "\n\n".join(lines) + "\n"


def _block(name, value):
    shown = f"stemma.{name}"
    if inspect.isfunction(value):
        return f"### `{_signature(shown, value, False)}`\n\n{_body(value.__doc__)}"
    has_init = "__init__" in vars(value) and not issubclass(value, BaseException) and name != "Future"
    title = _signature(shown, value.__init__, True) if has_init else shown
    out = [f"### `{title}`\n\n{_body(value.__doc__)}"]
    if has_init and not dataclasses.is_dataclass(value):
        out.append(_body(value.__init__.__doc__))
    for member_name, member in public_members(value):
        if isinstance(member, property):
            if member_name not in documented(value.__doc__):
                out.append(f"**`.{member_name}`** {_body(member.__doc__)}")
        else:
            out.append(f"**`.{_signature(member_name, member, True)}`** {_body(member.__doc__)}")
    return "\n".join(out)


def reference():
    out = []
    for title, names in SECTIONS:
        out.append(f"## {title}\n")
        out += [_block(name, resolve(name)) for name in names]
    return "\n".join(out)


def main():
    head = PAGE.read_text().partition(MARKER)[0]
    PAGE.write_text(f"{head}{MARKER}\n{reference()}")


if __name__ == "__main__":
    main()
