#!/usr/bin/env python3
"""Builds the Python distribution: an sdist, and from it the wheel, into the folder that is given. `make dist` runs it.

The wheel is built from the unpacked sdist, so that what the sdist lacks is found here and not by who installs it. Works on a
copy: the source tree stays as it is. Needs setuptools; no network.
"""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent
SOURCES = ("pyproject.toml", "README.md", "stemma")


def copy_sources(target):
    """The package and what its metadata names, with the repository's license."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(ROOT / name, target / name)
    license_file = ROOT.parent.parent / "LICENSE"
    if license_file.exists():
        shutil.copy(license_file, target / "LICENSE")


def build(kind, source, out):
    """The file that the build backend makes of a source tree; kind: "sdist" or "wheel"."""
    script = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, str(out)], cwd=source, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"building the {kind} failed:\n{done.stdout}{done.stderr}")
    return pathlib.Path(out) / done.stdout.strip().splitlines()[-1]


def dist(out):
    """(sdist, wheel) in the folder `out`, which is made if it is not there."""
    out = pathlib.Path(out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stemma-dist-") as folder:
        source, unpacked = pathlib.Path(folder) / "source", pathlib.Path(folder) / "unpacked"
        source.mkdir()
        copy_sources(source)
        sdist = build("sdist", source, out)
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked)
        [tree] = unpacked.iterdir()
        return sdist, build("wheel", tree, out)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: dist.py FOLDER")
    for path in dist(sys.argv[1]):
        print(path)


if __name__ == "__main__":
    main()
