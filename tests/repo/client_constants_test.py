"""The Python client talks to the server with numbers that the C++ code has, too: where one changes, the other follows."""

import ast
import re

import pytest
import source_tree

_PYTHON = "client/python/stemma/_connection.py"
_SAME = [("common/base/connection_pings.h", "kPingEveryMs", "_PING_MS"),
         ("common/base/connection_pings.h", "kPingAnsweredWithinMs", "_PING_ANSWER_MS"),
         ("common/base/message_sizes.h", "kReceivedBytesMax", "_RECEIVE_BYTES_MAX")]


def in_cpp(text, name):
    """The value of a constant of whole numbers, shifts and products."""
    (expression,) = re.findall(rf"constexpr \w+ {name} = ([^;]+);", text)
    return _value(re.sub(r"(?<=\d)('|u\b)", "", expression))


def in_python(text, name):
    (expression,) = re.findall(rf"(?m)^{name} = ([^#\n]+)", text)
    return _value(expression)


def sizes_in_cpp(text):
    """{field of config.json: the largest value that the server takes}."""
    words = dict(re.findall(r"constexpr int64_t (\w+) = (0x[0-9a-f]+);", text))
    found = re.findall(r'fields\.Int(?:Or)?\("(\w+)", (?:[^;]*, )?([^,;]+)\)\);', text)
    return {field: int(words[most], 16) if most in words else _value(most) for field, most in found}


def _value(expression):
    assert set(expression) <= set("0123456789_ <*()-"), expression
    return eval(compile(ast.parse(expression.strip(), mode="eval"), "constant", "eval"), {})  # pylint: disable=eval-used


@pytest.mark.parametrize("header, cpp_name, python_name", _SAME)
def test_a_constant_of_both_has_one_value(header, cpp_name, python_name):
    tree = source_tree.repository()
    assert in_python(tree[_PYTHON], python_name) == in_cpp(tree[header], cpp_name)


def test_a_model_that_the_server_reads_is_one_that_can_be_counted():
    tree = source_tree.repository()
    (table,) = re.findall(r"_SIZES_MAX = (\{[^}]*\})", tree["client/python/stemma/_bound.py"])
    entries = dict(re.findall(r'"(\w+)": ([^,}]+)[,}]', table))
    sizes = sizes_in_cpp(tree["common/model/model_config.cc"])
    assert len(entries) == 12
    assert {field: _value(most) for field, most in entries.items()} == {field: sizes[field] for field in entries}


def test_constants_are_read_as_the_languages_read_them():
    assert in_cpp("inline constexpr int kA = 30'000;", "kA") == in_python("_A = 30_000  # ms", "_A") == 30000
    assert in_cpp("inline constexpr uint64_t kB = 3u << 20;", "kB") == in_python("_B = 3 << 20", "_B")
    assert in_cpp("inline constexpr int kC = 2;", "kC") != in_python("_C = 3", "_C")
    assert sizes_in_cpp('constexpr int64_t kMax = 0xff;\nX(a, fields.Int("a", 1, kMax));\nX(b, fields.IntOr("b", c.d, 1, 1 << 3));') == {
        "a": 255, "b": 8}
