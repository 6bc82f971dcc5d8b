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


def _value(expression):
    assert set(expression) <= set("0123456789_ <*"), expression
    return eval(compile(ast.parse(expression.strip(), mode="eval"), "constant", "eval"), {})  # pylint: disable=eval-used


@pytest.mark.parametrize("header, cpp_name, python_name", _SAME)
def test_a_constant_of_both_has_one_value(header, cpp_name, python_name):
    tree = source_tree.repository()
    assert in_python(tree[_PYTHON], python_name) == in_cpp(tree[header], cpp_name)


def test_constants_are_read_as_the_languages_read_them():
    assert in_cpp("inline constexpr int kA = 30'000;", "kA") == in_python("_A = 30_000  # ms", "_A") == 30000
    assert in_cpp("inline constexpr uint64_t kB = 3u << 20;", "kB") == in_python("_B = 3 << 20", "_B")
    assert in_cpp("inline constexpr int kC = 2;", "kC") != in_python("_C = 3", "_C")
