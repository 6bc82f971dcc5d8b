"""last_failures.py BUILD: the end of what each failed test of the last ctest run said, for a log of which one sees the end
alone. `make test` runs it after a failure."""

import pathlib
import re
import sys

LINES = 25  # of each test, and so of what a person reads first


def failed(folder):
    """The names in LastTestsFailed.log, in order."""
    path = folder / "LastTestsFailed.log"
    return [line.split(":", 1)[1] for line in path.read_text().splitlines()] if path.exists() else []


def outputs(log):
    """{test: what it printed} of a LastTest.log."""
    parts = re.split(r"^\d+/\d+ Test(?:ing)?: (\S+)\n", log, flags=re.MULTILINE)[1:]
    return {name: _between(body, "-" * 58 + "\n", "<end of output>") for name, body in zip(parts[::2], parts[1::2])}


def _between(text, begin, end):
    return text.split(begin, 1)[-1].split(end, 1)[0]


def main():
    folder = pathlib.Path(sys.argv[1]) / "Testing" / "Temporary"
    printed = outputs((folder / "LastTest.log").read_text(errors="replace"))
    for name in failed(folder):
        print(f"\n== {name}, its last {LINES} lines ==")
        print("\n".join(printed.get(name, "").rstrip().splitlines()[-LINES:]) or "(nothing)")


if __name__ == "__main__":
    main()
