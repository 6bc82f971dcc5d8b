"""What the checks read: a tree is a dict from path to text, the repository's or a small one that a control makes."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
_TEXT = (".h", ".cc", ".cu", ".cuh", ".py", ".proto", ".cmake", ".txt", ".md", ".sh", ".toml", ".yaml", ".yml", ".json")
_TEXT_NAMES = ("Makefile", "run", ".clang-format", ".clang-tidy", ".gitignore")

# Comments, raw strings, strings, characters (a quote inside a number is none).
_CPP_TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|R"(?P<end>[^()\s\\]{0,16})\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|"""
                        r"""(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])*'""", re.S)


def repository():
    """Every text file that git tracks or would track."""
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
                             "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [p for p in listed.split("\0") if p.endswith(_TEXT) or pathlib.PurePosixPath(p).name in _TEXT_NAMES]
    return {p: (ROOT / p).read_text(encoding="utf-8") for p in sorted(set(paths)) if (ROOT / p).is_file()}


def is_cpp(path):
    return path.endswith((".h", ".cc", ".cu", ".cuh"))


def folder(path):
    return str(pathlib.PurePosixPath(path).parent)


def cpp_code(text):
    """C++ without comments and without the contents of strings; lines stay where they are."""
    def blank(match):
        token = match.group()
        kept = "\n" * token.count("\n")
        return kept if token.startswith("/") else token[-1] + kept + token[-1]
    return _CPP_TOKEN.sub(blank, text)


def cpp_comments(text):
    """(line, text) of each comment line."""
    found = []
    for match in _CPP_TOKEN.finditer(text):
        if not match.group().startswith("/"):
            continue
        first = text.count("\n", 0, match.start()) + 1
        for offset, line in enumerate(match.group().split("\n")):
            found.append((first + offset, re.sub(r"^\s*(///?|/\*+|\*/?)|\*/\s*$", "", line).strip()))
    return found


def includes(text):
    """(line, what is included, the line's text)."""
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', line)
        if match:
            yield number, match.group(1), line.strip()


def assert_none(violations):
    assert not violations, "\n" + "\n".join(violations)
