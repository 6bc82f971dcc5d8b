"""docs/architecture.md and docs/parallelism.md name files and what is in them; all of it is there."""

import re

import source_tree

PAGE = "docs/architecture.md"
PAGES = (PAGE, "docs/parallelism.md")
_QUOTED = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:h|cc|py|proto|md|txt|toml|yaml|json)|(?:[\w.-]+/)*CMakeLists\.txt")
_NAME = re.compile(r"(?:\w+::)*~?(\w+)\(\)")


def entries(text):
    """(first line, text) of each list item, row of a table, or paragraph: what a name and its file stand in together."""
    found, begin = [], True
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            begin = True
        elif begin or re.match(r"\s*(?:[*|#-]|\d+\.)", line):
            found.append([number, line])
            begin = False
        else:
            found[-1][1] += "\n" + line
    return found


def is_there(path, tree):
    return path in tree or any(known.startswith(path) for known in tree) if path.endswith("/") else path in tree


def missing(tree, page=PAGE):
    """Files and folders that the page names and that are not there, and names that none of an entry's files holds."""
    found = []
    for line, text in entries(tree[page]):
        quoted = [part for part in _QUOTED.findall(text)]
        files = [part for part in quoted if _FILE.fullmatch(part) or re.fullmatch(r"[\w./-]+/", part)]
        found += [f"{page}:{line}: there is no {path}" for path in files if not is_there(path, tree)]
        for part in quoted:
            name = _NAME.fullmatch(part)
            if name and not any(re.search(rf"\b{name.group(1)}\b", tree[path]) for path in files if path in tree):
                found.append(f"{page}:{line}: none of its files holds {part}")
    return found


def test_what_the_pages_name_is_there():
    tree = source_tree.repository()
    source_tree.assert_none([problem for page in PAGES for problem in missing(tree, page)])


def test_the_page_is_found_from_the_first_pages():
    tree = source_tree.repository()
    for path in ("README.md", "CONTRIBUTING.md"):
        assert PAGE in tree[path], path
    assert "docs/parallelism.md" in tree["README.md"]


def test_a_name_or_file_that_is_gone_is_noticed():
    tree = {"worker/a.h": "void Run();", PAGE: "* `Run()` in `worker/a.h`, of\n  `worker/`"}
    assert not missing(tree)
    for page in ("* `Walk()` in `worker/a.h`", "* `Run()`, and\n\n`worker/a.h`", "| `worker/b.h` |", "in `worker/a.cc`.", "`client/`",
                 "* `worker/a.h`\n* `Run()`", "`worker/CMakeLists.txt`", "`A::Walk()` in `worker/a.h`"):
        assert missing({**tree, PAGE: page}), page
