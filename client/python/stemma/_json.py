"""JSON as the server and the commands read it: what they refuse is refused here, so that one file is one thing to both."""

import json
import math
import re

_MAX_DEPTH = 32
_BLANK = " \t\r\n"
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_MAYBE_HUGE = re.compile(r"[eE]\+?\d{3}|\d{300}")
_HALF_CHARACTER = re.compile(r"[\ud800-\udfff]")


def lines(path):
    """Yields (line number, text) of each line of a UTF-8 file that is not blank; ValueError names a line that is no text."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}:{number}: not UTF-8: {error.reason} at byte {error.start + 1}") from None
            if text.strip(_BLANK):
                yield number, text


def loads(text):
    """The value; ValueError says what is wrong: no JSON, a key that appears twice, NaN or a number that is too
    large, half a character, or a value that is nested too deep."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > _MAX_DEPTH:
            raise ValueError(f"JSON is nested deeper than {_MAX_DEPTH}")
    numbers = {"parse_float": _finite(float), "parse_int": _finite(int)} if _MAYBE_HUGE.search(text) else {}
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, **numbers)
    if "\\u" in text and _HALF_CHARACTER.search(json.dumps(value, ensure_ascii=False)):
        raise ValueError("a text holds one half of a character that \\u writes in two")
    return value


def _object(pairs):
    value = dict(pairs)
    if len(value) < len(pairs):
        seen = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"key {json.dumps(twice)} appears twice")
    return value


def _finite(number):
    def parse(text):
        if math.isinf(float(text)):
            raise ValueError(f"{text[:80]} is more than a number holds")
        return number(text)
    return parse


def _no_constant(name):
    raise ValueError(f"{name} is no JSON")
