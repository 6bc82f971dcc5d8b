"""docs/benchmarks.md as a list of sections, each of which says by itself how and where it was taken, so that one can be
taken anew while the others stay. Pure."""

import re

TARGETS = "Targets"
_TITLE = "## "
_VERDICT = re.compile(r"\* (met|\*\*missed\*\*): (.*)")
INTRODUCTION = (
    "# Benchmarks",
    "",
    "Every section was taken by itself, as its first line says: numbers of two sections may come from two machines, and no",
    "ratio is made of them. What one section compares ran in turns in one run; seconds and ratios are medians, with the range.",
    "The model is a Llama of 27.8 M parameters (hidden 512, 8 layers, 8/4 heads of 64, FFN 1408, vocabulary 4096), fp32, on 2",
    "threads. P/R/N: prompt tokens, response tokens, rollouts.",
)


def split(text):
    """{title: lines without the title and without blank ends}, in the page's order"""
    sections, lines = {}, []
    for line in text.splitlines():
        if line.startswith(_TITLE):
            lines = sections.setdefault(line.removeprefix(_TITLE), [])
            if lines:
                raise ValueError(f"two sections are named {line!r}")
        else:
            lines.append(line)  # those before the first title are the introduction, which is written anew
    return {title: "\n".join(lines).strip("\n").split("\n") for title, lines in sections.items()}


def verdict_lines(verdicts):
    """`verdicts`: [(text, met)]"""
    return [f"* {'met' if met else '**missed**'}: {text}" for text, met in verdicts]


def targets(sections):
    """How many targets are met, and those that are not: read from the sections, of which each ends with its own."""
    found = [(title, *match.groups()) for title, lines in sections.items() for match in map(_VERDICT.fullmatch, lines) if match]
    missed = [f"* {title}: {text}" for title, word, text in found if word != "met"]
    said = f"{len(found) - len(missed)} of {len(found)} are met; each stands at the end of its section."
    return [said, *(["", "Missed:", "", *missed] if missed else [])]


def join(sections):
    lines = list(INTRODUCTION)
    for title, body in {**sections, TARGETS: targets(sections)}.items():
        lines += ["", _TITLE + title, "", *body]
    return "\n".join(lines) + "\n"


def replaced(text, new, order):
    """The page with new sections in the place of those of their titles. `order`: of all titles; one that is not among them
    is of an older page, and goes."""
    if unknown := set(new) - set(order):
        raise ValueError(f"sections without a place: {sorted(unknown)}")
    have = {**split(text), **new}
    return join({title: have[title] for title in order if title in have})
