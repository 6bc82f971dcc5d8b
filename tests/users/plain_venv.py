"""A virtual environment as a user makes one: the client from its wheel, and what it depends on, nothing else.

No network: grpcio and protobuf are linked from the environment that runs the tests, by their installed files' names.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "client" / "python"
DEPENDENCIES = ("grpcio", "protobuf", "typing_extensions")


def make(path, more=()):
    """The environment's Python, without the client yet; `more`: further distributions to lend it."""
    path = pathlib.Path(path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    [site] = path.glob("lib/python*/site-packages")
    for name in (*DEPENDENCIES, *more):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(distribution.locate_file(top).resolve())
    return path / "bin" / "python"


def dist(out):
    """(sdist, wheel), built as `make dist` does."""
    spec = importlib.util.spec_from_file_location("dist", CLIENT / "dist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dist(out)


def install(python, file):
    """Installs a wheel, an sdist or a source tree by pip, without network, dependencies or an isolated build."""
    # The tests' path has the client's sources: with what an earlier `pip install` has left in them, pip would take it for installed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q", "--no-deps",
                    "--no-index", "--no-build-isolation", file], check=True, env=environment)
