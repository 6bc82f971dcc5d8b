"""A virtual environment as a user makes one: the client from its wheel, and what it depends on, nothing else.

No network: grpcio and protobuf are linked from the environment that runs the tests, by their installed files' names.
"""

import importlib.metadata
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "client" / "python"
DEPENDENCIES = ("grpcio", "protobuf", "typing_extensions")


def make(path):
    """The environment's Python, without the client yet."""
    path = pathlib.Path(path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    [site] = path.glob("lib/python*/site-packages")
    for name in DEPENDENCIES:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top).resolve())
    return path / "bin" / "python"


def build(source, out, kind="wheel"):
    """The one file that the build backend makes of a source directory: "wheel" or "sdist"."""
    script = ("import sys; from setuptools import build_meta; "
              f"print(build_meta.build_{kind}(sys.argv[1]))")
    done = subprocess.run([sys.executable, "-c", script, str(out)], cwd=source, check=True, capture_output=True, text=True)
    return pathlib.Path(out) / done.stdout.strip().splitlines()[-1]


def install(python, file):
    """Installs a wheel or sdist by pip, without network, dependencies or an isolated build."""
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q", "--no-deps",
                    "--no-index", "--no-build-isolation", file], check=True)
