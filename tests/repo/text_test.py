"""What stands in files: TODO(name): reason, no commented-out code, nothing that only one machine or its owner knows."""

import ast
import re
import warnings

import source_tree

_ITSELF = "tests/repo/text_test.py"  # its controls are what it looks for
_TODO = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!X)")
_TODO_FORM = re.compile(r"\bTODO\([a-z][\w-]*\): \S+")
_CPP_STATEMENT = re.compile(
    r"^(?:#\s*(?:include|define|if|ifdef|ifndef|endif|else|pragma)\b"        # preprocessor
    r"|(?:if|for|while|switch|else if|\} else)\b.*\{$|\}\s*(?:else\s*\{)?$"  # blocks
    r"|return\b[^.]*;$|(?:break|continue|using [\w:]+( = .*)?);$"
    r"|(?:const\s+|static\s+|auto[&*]*\s+)*[\w:.\->\[\]<>*&]+(?:\s+[\w\[\]*&]+)?\s*(?:[-+*/|&]?=(?!=)|\(|\{).*;$)")
_DIRECTORY = re.compile(r"(?<![\w.}\])>-])/(work|tmp|var/tmp|root|home|mnt|media|workspace|Users)/[\w.-]")
# Hosts that may be named: those of the protocol, and names that lead nowhere.
_HOST = re.compile(r"\b(?:[a-z0-9-]+\.)+(?:org|com|io|net|dev|ai|co|cn|edu)\b(?![\w(.]*\()", re.I)
_HOSTS_ALLOWED = {"stemma.dev", "type.googleapis.com", "example.com", "example.org"}
_INDEX = re.compile(r"--(extra-)?index-url|--find-links|--trusted-host|(?<![=\w.])\d{1,3}(?:\.\d{1,3}){3}\b")
_ADDRESSES_ALLOWED = re.compile(r"^(127\.|0\.0\.0\.0|10\.0\.0\.|192\.0\.2\.|255\.)")
_MAKING = re.compile(r"co-authored-by|\b(?:written|made|generated|authored|drafted)\s+(?:by|with)\s+(?:an?\s+)?"
                     r"(?:ai|llm|language model|agent|assistant|chatbot|bot)\b|\bas an ai\b|\bchain of thought\b", re.I)
_DATA = ("tests/golden/", "tests/client/cli/golden/", "examples/traces/")


def _texts(tree):
    return ((p, t) for p, t in tree.items() if p != _ITSELF and not (p.startswith(_DATA) and p.endswith((".json", ".txt"))))


def _lines(tree, is_wrong):
    return [f"{path}:{number}: {line.strip()[:120]}" for path, text in _texts(tree)
            for number, line in enumerate(text.split("\n"), 1) if is_wrong(line)]


def bad_todos(tree):
    return _lines(tree, lambda line: _TODO.search(line) and not _TODO_FORM.search(line))


def _is_python_statement(text):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    return len(nodes) == 1 and (isinstance(nodes[0], (ast.Import, ast.ImportFrom, ast.Return, ast.Assert, ast.Raise, ast.Delete))
                                or isinstance(getattr(nodes[0], "value", None), ast.Call))


def commented_out(tree):
    found = []
    for path, text in _texts(tree):
        if source_tree.is_cpp(path):
            found += [f"{path}:{number}: {comment}" for number, comment in source_tree.cpp_comments(text)
                      if _CPP_STATEMENT.match(comment)]
        elif path.endswith(".py"):
            for number, line in enumerate(text.split("\n"), 1):
                comment = re.match(r"\s*#\s?(?!!)(.+)", line)
                if comment and _is_python_statement(comment.group(1).strip()):
                    found.append(f"{path}:{number}: {line.strip()}")
        elif path.endswith((".cmake", "CMakeLists.txt")):
            found += [f"{path}:{number}: {line.strip()}" for number, line in enumerate(text.split("\n"), 1)
                      if re.match(r"\s*#\s*[a-z_]+\([^)]*\)$", line) and "..." not in line]
    return found


def machine_words(tree):
    def is_wrong(line):
        hosts = {host.lower() for host in _HOST.findall(line)} - _HOSTS_ALLOWED
        index = [m.group() for m in _INDEX.finditer(line) if not _ADDRESSES_ALLOWED.match(m.group())]
        return _DIRECTORY.search(line) or hosts or index or _MAKING.search(line)
    return _lines(tree, is_wrong)


def missing_pages(tree):
    """Pages of docs/, and README.md and the like, that a file names and that are not there."""
    found = []
    for path, text in _texts(tree):
        for match in re.finditer(r"(?<![\w/.<-])(?:docs/[\w-]+|[A-Z]+)\.md\b", text):
            name = match.group()
            beside = f"{source_tree.folder(path)}/{name}".removeprefix("./")
            if not {name, f"docs/{name}", beside} & tree.keys():
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path}:{line}: there is no {name}")
    return found


def test_a_todo_says_who_and_why():
    source_tree.assert_none(bad_todos(source_tree.repository()))


def test_no_code_is_commented_out():
    source_tree.assert_none(commented_out(source_tree.repository()))


def test_no_file_names_a_machine_a_host_or_its_making():
    source_tree.assert_none(machine_words(source_tree.repository()))


def test_pages_that_are_named_exist():
    source_tree.assert_none(missing_pages(source_tree.repository()))


def test_a_bare_todo_is_noticed():
    for line in ("// TODO: later", "# FIXME", "// TODO(x) no colon", "# XXX look again"):
        assert bad_todos({"common/a.cc": line}), line
    assert not bad_todos({"common/a.cc": "// TODO(maria): needs a kernel for varlen\nmkdtemp(\"a-XXXXXX\");"})


def test_commented_out_code_is_noticed():
    for line in ("//  x = Run(y);", "// return absl::OkStatus();", "// if (a > b) {", "// }", '// #include "a.h"',
                 "// const auto a = b;", "// Run(a, b);", "// std::string name = a;", "int a;  // b += 2;", "/* Run(); */"):
        assert commented_out({"common/a.cc": line}), line
    for line in ("// y = x * rstd * weight, statistics in fp32", "// Returns dx; adds to dweight (fp32).",
                 "// the server's (no connection); then it waits", "// A group is whole; see Finish.",
                 "// if it is empty: nothing", "// of `actions`, in order (a status is one);", 'Say("// x = 1;");'):
        assert not commented_out({"common/a.cc": line}), line
    for line in ("# import torch", "# run(a, b)", "    # x = make(1)", "# return x", "# from a import b"):
        assert commented_out({"a/b.py": line}), line
    for line in ("#!/usr/bin/env python3", "# D of the aggregation (whole mini-batch)", "# y = x * w", "# per token: w"):
        assert not commented_out({"a/b.py": line}), line
    assert commented_out({"common/CMakeLists.txt": "# add_subdirectory(a)"})
    assert not commented_out({"common/CMakeLists.txt": "# stemma_test(name LABEL ... LINK dep ...): one binary"})


def test_a_machine_or_a_host_is_noticed():
    for line in ("see /work/a/b.md", 'path = "/tmp/x"', "cd /home/maria/stemma", "--index-url x", "at 172.16.0.3:80",
                 "https://packages.some-host.org/simple", "registry.some-host.io/stemma", "Co-authored-by: x",
                 "Generated by an AI", "written with an LLM"):
        assert machine_words({"docs/a.md": line}), line
    for line in ("127.0.0.1:0", "type.googleapis.com/a", "/proc/self/status", "/usr/bin/env bash", "stemma/internal/v1",
                 "${dir}/data/exports", "generated by generate.py", "<data>/exports/NAME", "LLM reinforcement learning",
                 "absl::StrCat(root, \"/exports\")", "value.co()", "a.io(b)"):
        assert not machine_words({"docs/a.md": line}), line


def test_a_page_that_is_not_there_is_noticed():
    tree = {"common/a.h": "// docs/errors.md lists them, README.md too\n", "docs/errors.md": "", "README.md": ""}
    assert not missing_pages(tree)
    tree["common/a.h"] = "// docs/numbers.md lists them\n"
    assert missing_pages(tree) == ["common/a.h:1: there is no docs/numbers.md"]
