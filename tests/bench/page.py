"""docs/benchmarks.md as a list of sections, each of which says by itself how and where it was taken, so that one can be
taken anew while the others stay. Pure."""

import re
import statistics

TARGETS = "Targets"
_TITLE = "## "
_WORDS = {True: "met", False: "**missed**", None: "not decided"}
_VERDICT = re.compile(r"\* (met|\*\*missed\*\*|not decided): (.*)")
# Pairs that ran next to each other differ by 1 to 3 % on a quiet machine.
_QUIET = 0.1
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


def reaches(values, target):
    """Whether the median of `values`, a number for each pair, is the target at least. None: they differ by more than a tenth
    and lie on both sides of it, so that another run would say otherwise."""
    low, high = min(values), max(values)
    if low < target <= high and high - low > _QUIET * statistics.median(values):
        return None
    return statistics.median(values) >= target


def verdict_lines(verdicts):
    """`verdicts`: [(text, met)]; met is None where it is not decided"""
    return [f"* {_WORDS[met]}: {text}" for text, met in verdicts]


def targets(sections):
    """How many targets are met, and those that are not: read from the sections, of which each ends with its own."""
    found = [(title, *match.groups()) for title, lines in sections.items() for match in map(_VERDICT.fullmatch, lines) if match]
    lines = [f"{sum(word == 'met' for _, word, _ in found)} of {len(found)} are met; each stands at the end of its section."]
    for met, title in ((False, "Missed:"), (None, "Not decided, for the pairs of that run differ by more:")):
        of_word = [f"* {section}: {text}" for section, word, text in found if word == _WORDS[met]]
        lines += ["", title, "", *of_word] if of_word else []
    return lines


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
