"""What stands in files: TODO(name): reason, no commented-out code, nothing that only one machine or its owner knows, and
comments that are sentences as far as a test can tell."""

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
_HOSTS_ALLOWED = {"stemma.dev", "type.googleapis.com", "example.com", "example.org", "ui.perfetto.dev", "www.w3.org"}
_INDEX = re.compile(r"--(extra-)?index-url|--find-links|--trusted-host|(?<![=\w.])\d{1,3}(?:\.\d{1,3}){3}\b")
_ADDRESSES_ALLOWED = re.compile(r"^(127\.|0\.0\.0\.0|10\.0\.0\.|192\.0\.2\.|233\.252\.0\.|255\.)")
_MAKING = re.compile(r"co-authored-by|\b(?:written|made|generated|authored|drafted)\s+(?:by|with)\s+(?:an?\s+)?"
                     r"(?:ai|llm|language model|agent|assistant|chatbot|bot)\b|\bas an ai\b|\bchain of thought\b", re.I)
# A comment that opens so is the end of a sentence whose beginning only its author knows.
_HEADLESS = re.compile(r"of\b", re.I)
# A function's comment begins with a verb; these words begin a fragment. “Returns what ...” and “Counts for ...” are sentences.
_FRAGMENT = re.compile(r"(?:After|As|At|Before|Between|By|For|From|In|Like|Of|On|Per|Through|To|Until|What|With|Within|Without)\b")
_FUNCTION = re.compile(r"\s*(?!(?:class|enum|namespace|return|static_assert|struct|using)\b)[^=;{]*(?:^|[\s*&])~?(?![A-Z_]+\()\w+\(")
_DATA = ("tests/golden/", "tests/client/cli/golden/", "examples/traces/")


def _texts(tree):
    return ((p, t) for p, t in tree.items() if p != _ITSELF and not (p.startswith(_DATA) and p.endswith((".json", ".txt"))))


def _lines(tree, is_wrong):
    return [f"{path}:{number}: {line.strip()[:120]}" for path, text in _texts(tree)
            for number, line in enumerate(text.split("\n"), 1) if is_wrong(line)]


def bad_todos(tree):
    return _lines(tree, lambda line: _TODO.search(line) and not _TODO_FORM.search(line))


def _comments(path, text):
    """{line: (text, whether it stands alone)} of comments, docstrings' first lines included."""
    lines = text.split("\n")
    if source_tree.is_cpp(path) or path.endswith(".proto"):
        return {number: (comment, lines[number - 1].lstrip().startswith(("//", "/*", "*")))
                for number, comment in source_tree.cpp_comments(text)}
    found = {}
    if path.endswith((".py", ".cmake", ".sh", ".yaml", ".yml", ".toml", "CMakeLists.txt", "Makefile")):
        for number, line in enumerate(lines, 1):
            match = re.match(r"""(?P<code>[^#'"]*)#(?!!)\s?(?P<comment>.*)|\s*[rf]?\"{3}(?P<docstring>.+)""", line)
            if match:
                comment = match["comment"] if match["docstring"] is None else match["docstring"]
                found[number] = (comment.strip(), not (match["code"] or "").strip())
    return found


def headless_comments(tree):
    """Comments and help texts that open with “Of”, and comments of functions in headers that begin with no verb."""
    found = [f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}" for path, text in _texts(tree)
             if source_tree.is_cpp(path) and not path.startswith("tests/") for match in re.finditer(r'"Of [^"]*"', text)]
    for path, text in _texts(tree):
        comments, lines = _comments(path, text), text.split("\n")
        for number, (comment, alone) in comments.items():
            if not alone:
                wrong = comment.startswith("Of ")
            elif comments.get(number - 1, ("", False))[1]:
                continue  # the block began above
            else:
                end = number
                while comments.get(end + 1, ("", False))[1]:
                    end += 1
                below = lines[end:end + 2]
                declared = below[1:] if below and below[0].lstrip().startswith("template") else below[:1]
                wrong = _HEADLESS.match(comment) or path.endswith(".h") and _FRAGMENT.match(comment) and declared and \
                    _FUNCTION.match(declared[0])
            if wrong:
                found.append(f"{path}:{number}: {comment[:100]}")
    return found


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


def test_comments_are_sentences():
    source_tree.assert_none(headless_comments(source_tree.repository()))


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


def test_a_headless_comment_is_noticed():
    for path, text in (("common/a.cc", "// Of one block the op's own tensor.\n"), ("common/a.cc", "// of a layer\nint Size();\n"),
                       ("common/a.cc", "int size;  // Of one element.\n"), ("proto/a.proto", "// Of the device.\n"),
                       ("a/b.py", "# Of the model.\n"), ("a/b.py", 'def f():\n    """Of rows that are ones."""\n'),
                       ("client/a.cc", 'AddNumber("--eps", &eps, "Of the norms");'),
                       ("common/CMakeLists.txt", "# Of every program.\n"), ("a/run.sh", "set -e\n# of the run\n"),
                       ("common/a.h", "// What ended since the last call.\nstd::vector<Copy> Take();\n"),
                       ("common/a.h", "class A {\n  // As Add, fitted once.\n  void AddAll();\n};\n"),
                       ("common/a.h", "// For the wire,\n// and back.\ntemplate <typename T>\nT To(const T& value);\n")):
        assert headless_comments({path: text}), text
    for path, text in (("common/a.cc", "// Adds the rows\n// of one block.\n"), ("common/a.cc", "int size;  // of one element\n"),
                       ("common/a.cc", 'Say("// Of one");\n'), ("a/b.py", "text = '# of the model'\n"), ("a/b.py", "x = 1  # of a step\n"),
                       ("common/a.h", "// Offsets of the rows.\nint64_t Offset();\n"), ("common/a.h", "// As the file has it.\nint size = 3;\n"),
                       ("common/a.h", "// For any thread.\nclass A {\n  A();\n};\n"),
                       ("common/a.h", "// What is told of an end.\nstd::function<void(int)> end_;\nint size_ ABSL_GUARDED_BY(mutex_);\n")):
        assert not headless_comments({path: text}), text
