"""JSON as the server and the commands read it: what they refuse is refused here, so that one file is one thing to both."""

import difflib
import json
import math
import re

_MAX_DEPTH = 32
_BLANK = " \t\r\n"
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_NEITHER_QUOTE_NOR_BRACKET = bytes(set(range(256)) - set(b'"[]{}'))
_MAY_BE_INFINITE = re.compile(r"[eE]\+?\d\d\d|\d{200}")  # an exponent of two digits needs 210 before it
_HALF_CHARACTER = re.compile(r"[\ud800-\udfff]")


def lines(path):
    """Yields (line number, text) of each line of a UTF-8 file that is not blank; ValueError names a line that is no text."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}:{number}: not UTF-8: {error.reason} at byte {error.start + 1}") from None
            if text.strip(_BLANK):
                yield number, text


def hint(name, known):
    """The name that was meant, as the end of what is said of one that is not known; "" where none is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def loads(text):
    """The value; ValueError says what is wrong: no JSON, a key that appears twice, NaN or a number that is too
    large, half a character, or a value that is nested too deep."""
    text = text.removeprefix("\ufeff")  # which some editors put before UTF-8, and joining files leaves inside
    if _depth(text) > _MAX_DEPTH:
        raise ValueError(f"JSON is nested deeper than {_MAX_DEPTH}")
    numbers = {"parse_float": _finite, "parse_int": _whole} if _MAY_BE_INFINITE.search(text) else {}
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, **numbers)
    if "\\u" in text and _HALF_CHARACTER.search(json.dumps(value, ensure_ascii=False)):
        raise ValueError("a text holds one half of a character that \\u writes in two")
    return value


def _depth(text):
    """How deep brackets lie in brackets, those in strings aside."""
    if "\\" not in text:  # then quotes and brackets alone tell it, and they are few beside numbers
        text = text.encode().translate(None, _NEITHER_QUOTE_NOR_BRACKET).decode()
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        deepest = max(deepest, depth)
    return deepest


def _object(pairs):
    value = dict(pairs)
    if len(value) < len(pairs):
        seen = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"key {json.dumps(twice)} appears twice")
    return value


def _finite(text):
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:80]} is more than a number holds")
    return value


def _whole(text):
    _finite(text)  # the server reads a whole number that is larger than 64 bits as this
    return int(text)


def _no_constant(name):
    raise ValueError(f"{name} is no JSON")
