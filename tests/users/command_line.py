"""The command line as users run it: commands by name, their options as the help lists them."""

import os
import pathlib
import re
import subprocess

BIN = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "bin"
PATIENCE_S = 60


def run(*arguments, program="stemma", cwd=None):
    environment = {key: value for key, value in os.environ.items() if key != "STEMMA_SERVER"}
    return subprocess.run([str(BIN / program), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S,
                          env=environment, cwd=cwd)


def output(*arguments, **kwargs):
    """stdout of a command that must succeed."""
    result = run(*arguments, **kwargs)
    assert result.returncode == 0, result.stderr
    return result.stdout


def commands(path=()):
    """(path, help) of every command, parents first."""
    text = run(*path, "--help").stdout
    yield path, text
    if "Subcommands:" in text:
        section = text.split("Subcommands:")[1].split("\n\n")[0]
        for name in re.findall(r"^  ([a-z]+)", section, re.MULTILINE):
            yield from commands((*path, name))


def options(help_text):
    """(name, placeholder) of each option; a flag has none."""
    section = help_text.split("\nOptions:\n")[1].split("\n\n")[0]
    found = re.findall(r"^  (?:-\w,)?(--[\w-]+)(?: (\S+))?", section, re.MULTILINE)
    return [(name, "" if value[:1].isupper() and value[1:2].islower() else value) for name, value in found]
