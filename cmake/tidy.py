"""Runs clang-tidy over the product's C++: `cmake/tidy.py BUILD_DIR [--each]`, called by cmake/lint.sh.

Reading headers is nearly all of what clang-tidy does, so the sources of one folder that are compiled alike are read in
units of several, each unit a generated source that includes them. A unit with a finding, or one that does not compile
because two of its sources use one name, is divided until each source that is in question was read alone: what is reported
is always of a source by itself. --each reads all alone from the start and so also sees an include that is missing.
"""

import argparse
import concurrent.futures
import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES_PER_UNIT = 8  # more gain little: a unit's own lines then cost as much as the headers
# Precompiled headers (cmake/precompiled.cmake) are g++'s: clang cannot read them.
PRECOMPILED = re.compile(r" -Winvalid-pch -include \S*cmake_pch\.hxx")


class Source:
    """A source, and how it is compiled but for its name and its object's: `entry` is its own of a compilation database, or
    that of the unit in which the build compiles it with others."""

    def __init__(self, path: str, entry: dict):
        self.path = path
        self.directory = entry["directory"]
        self.flags = re.sub(r" -o \S+| -c \S+", "", PRECOMPILED.sub("", entry["command"]))


def sources(build: Path) -> list[Source]:
    """Returns what was compiled of the product: CUDA's side is not, where its toolkit is missing."""
    globs = ["common/*.cc", "server/*.cc", "client/cli/*.cc", "worker/*.cc"]
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "--", *globs], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split()
    compiled = {path: entry for entry in json.loads((build / "compile_commands.json").read_text())
                for path in sources_of(Path(entry["file"]))}
    return [Source(str(ROOT / path), compiled[str(ROOT / path)]) for path in listed if str(ROOT / path) in compiled]


def sources_of(compiled: Path) -> list[str]:
    """Returns what a compiled file holds: itself, or the sources that a unit of the build (CMAKE_UNITY_BUILD) includes."""
    if compiled.parent.name != "Unity":
        return [str(compiled)]
    return re.findall(r'#include "(.*)"', compiled.read_text())


def units(found: list[Source]) -> list[list[Source]]:
    """Divides the sources into units: of one folder and one way to compile, the same number in each, nearly."""
    def folder_and_flags(source: Source):
        return str(Path(source.path).parent), source.flags

    result = []
    for _, group in itertools.groupby(sorted(found, key=folder_and_flags), key=folder_and_flags):
        group = list(group)
        count = -(-len(group) // FILES_PER_UNIT)
        result += [group[i::count] for i in range(count)]
    return sorted(result, key=len, reverse=True)


class Tidy:
    """Runs clang-tidy on units, each with a compilation database of its own."""

    def __init__(self):
        include = subprocess.run(["g++", "-print-file-name=include"], check=True, capture_output=True, text=True)
        # --quiet leaves only a count of what was found in headers that are not ours. omp.h, which clang lacks, is g++'s.
        self.command = [str(ROOT / "third_party/venv/bin/clang-tidy"), "--quiet", f"--config-file={ROOT / '.clang-tidy'}",
                        "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-deprecated-declarations",
                        f"--extra-arg=-idirafter{include.stdout.strip()}"]

    def findings(self, unit: list[Source]) -> list[str]:
        """Returns what clang-tidy says of the sources, a text for each that has a finding by itself."""
        done = self.read(unit)
        if done.returncode == 0 and not done.stdout.strip():
            return []
        if len(unit) == 1:
            return [done.stdout + done.stderr]
        half = len(unit) // 2
        return self.findings(unit[:half]) + self.findings(unit[half:])

    def read(self, unit: list[Source]) -> subprocess.CompletedProcess:
        """Runs clang-tidy once, on the source itself or on one that includes all of the unit."""
        with tempfile.TemporaryDirectory() as folder:
            path = unit[0].path
            if len(unit) > 1:
                path = f"{folder}/unit.cc"
                includes = [f'#include "{source.path}"  // NOLINT(bugprone-suspicious-include)\n' for source in unit]
                Path(path).write_text("".join(includes))
            entry = {"directory": unit[0].directory, "file": path, "command": f"{unit[0].flags} -c {path}"}
            Path(folder, "compile_commands.json").write_text(json.dumps([entry]))
            return subprocess.run([*self.command, "-p", folder, path], capture_output=True, text=True, cwd=ROOT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--each", action="store_true", help="reads each source alone")
    arguments = parser.parse_args()
    found = sources(arguments.build.resolve())
    work = [[source] for source in found] if arguments.each else units(found)
    print(f"lint: clang-tidy, {len(found)} files in {len(work)} units", flush=True)
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        findings = [text for texts in pool.map(Tidy().findings, work) for text in texts]
    for text in findings:
        print(text)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
