"""report.json of gpu_check.sh as a page: the section "GPU" of docs/benchmarks.md, and what gpu_check.sh prints at its end.

    python3 tests/gpu/report_page.py FILE                 prints the page of a report
    python3 tests/gpu/report_page.py [--check]            writes the section from the newest of tests/gpu/reports, or checks it

A number that is not in the report is “not measured”; none is scaled or guessed. Needs nothing but Python 3.8.
"""

import argparse
import json
import os
import sys

from report_data import NOT_MEASURED, SCHEMA, Bars, Report  # noqa: F401
from report_sections import PARTS, SECTIONS, about_lines  # noqa: F401

HERE = os.path.dirname(os.path.abspath(__file__))
TITLE = "GPU"


def lines_of(content):
    """The section's lines without its title."""
    report, bars, lines = Report(content), Bars(), []
    if not report.parts:
        lines += ["Nothing was measured on a GPU yet. `make gpu-bundle` packs what measures it; [gpu.md](gpu.md) says how to run it",
                  "and what comes out. Beside what has a target below, these are not measured: products, attention and copies of the",
                  "device; the longest groups that run; Qwen3-8B's shape; suffixes per wave; APPLY; transformers on the same group."]
    else:
        lines += about_lines(report)
    for title, make in SECTIONS:
        made = make(report, bars)
        if report.parts:
            body = made or [f"{NOT_MEASURED}."]
            lines += ["", *([f"### {title}", ""] if title else []), *(body[1:] if body[0] == "" else body)]
    return lines + ["", *bars.lines]


def device_of(content):
    return Report(content).device()


def newest_of_each_device(contents):
    """`contents`: reports, oldest first. The newest of each device, newest first."""
    newest = {}
    for content in contents:
        newest.pop(device_of(content), None)  # the place is the newest one's
        newest[device_of(content)] = content
    return list(newest.values())[::-1]


def kept_reports():
    folder = os.path.join(HERE, "reports")
    files = sorted(name for name in os.listdir(folder) if name.endswith(".json")) if os.path.isdir(folder) else []
    return newest_of_each_device(read(os.path.join(folder, name)) for name in files)


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def section(content):
    """The lines of one report. The first says how it is taken, as that of every section does."""
    commit = (content or {}).get("taken", {}).get("commit")
    of = f"at commit {commit}." if commit else "at an unknown commit." if Report(content).parts else "at commit –: on no machine yet."
    return [f"Taken by `make gpu-bundle` and its gpu_check.sh {of}", "", *lines_of(content)]


def section_of_all(contents):
    """The lines of the page's section: each report under the name of its device but the first."""
    first, *others = contents or [None]
    lines = section(first)
    for content in others:
        lines += ["", f"### {device_of(content)}", ""]
        lines += [f"#{line}" if line.startswith("### ") else line for line in section(content)]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", nargs="?", help="prints the page of this report")
    parser.add_argument("--check", action="store_true", help="says whether docs/benchmarks.md is what the kept reports give")
    arguments = parser.parse_args()
    if arguments.report:
        print("\n".join([f"## {TITLE}", "", *section(read(arguments.report))]))
        return
    sys.path.insert(0, os.path.join(HERE, "..", "bench"))
    import page  # not in the bundle

    path = os.path.join(HERE, "..", "..", "docs", "benchmarks.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    have = page.split(text)
    titles = [title for title in have if title not in (TITLE, page.TARGETS)]
    new = page.replaced(text, {TITLE: section_of_all(kept_reports())}, [*titles, TITLE])
    if arguments.check:
        if new != text:
            raise SystemExit("docs/benchmarks.md, section GPU, is not what tests/gpu/report_page.py makes: run it")
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)


if __name__ == "__main__":
    main()
