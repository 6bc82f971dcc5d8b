"""E6: examples/hello.py as the README tells it: from a plain virtual environment, twice in a row, on one server."""

import os
import pathlib
import re
import subprocess

import plain_venv
import pytest
import stemma

ROOT = plain_venv.ROOT
BIN = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "bin"
HELLO = ROOT / "examples" / "hello.py"
LINE = re.compile(r"step (\d+): loss ([+-][\d.]+)  grad norm ([\d.]+)  log-prob of the liked token (-[\d.]+)  "
                  r"tokens run (\d+) of (\d+)")


def commands_of(text):
    """The shell lines of the block that runs hello.py."""
    block = next(b for b in re.findall(r"(?:^    .+\n)+", text, re.M) if "examples/hello.py" in b)
    return [line.strip() for line in block.splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What two runs print, and the server's data directory while it still is."""
    folder = tmp_path_factory.mktemp("hello")
    init = next(c for c in commands_of(HELLO.read_text()) if " model init " in c).split()
    assert init[0] == "build/release/bin/stemma" and init[3] == "tiny"
    subprocess.run([BIN / "stemma", *init[1:3], folder / "tiny", *init[4:]], check=True)
    python = plain_venv.make(folder / "env")
    plain_venv.install(python, plain_venv.dist(folder / "dist")[1])
    with stemma.LocalServer(folder / "tiny", binary=BIN / "stemma", threads=1) as server:
        plain = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = [subprocess.run([python, HELLO, server.address], capture_output=True, text=True, env=plain, cwd=folder)
                for _ in range(2)]
        for one in done:
            assert one.returncode == 0, one.stderr
        exported = sorted(path.name for path in (server.data / "exports").iterdir())
        yield [one.stdout for one in done], exported


def test_e6_hello_runs_twice_in_a_row_and_says_what_was_saved(runs):
    outputs, exported = runs
    print(outputs[0])
    for index, output in enumerate(outputs):
        steps = [m.groups() for m in LINE.finditer(output)]
        assert [int(s[0]) for s in steps] == [4 * index + k for k in (1, 2, 3, 4)]
        for _, loss, grad_norm, _, run, logical in steps:
            assert abs(float(loss)) < 5e-5 and float(grad_norm) > 0
            assert int(run) < int(logical) / 3  # the headline feature ran: the plan was reuse
        assert "The loss is 0 because" in output
        saved = 1 - int(steps[-1][4]) / int(steps[-1][5])
        assert f"{saved:.0%} of the tokens were saved" in output
    assert len(exported) == 2 and all(f"exports/{name}" in output for name, output in
                                      zip(exported, sorted(outputs, key=lambda o: o.split("exports/")[1])))


def test_e6_the_rewarded_token_becomes_likelier(runs):
    """Over both runs: eight steps of it, whatever the made-up answers are."""
    values = [float(m[3]) for output in runs[0] for m in LINE.findall(output)]
    assert values[-1] > values[0]


def test_e6_the_readme_shows_the_commands_and_an_output_of_this_form(runs):
    readme = (ROOT / "README.md").read_text()
    assert commands_of(readme) == commands_of(HELLO.read_text())
    shown = [m.groups() for m in LINE.finditer(readme)]
    assert len(shown) == 4 and [(s[0], s[4], s[5]) for s in shown] == [
        (m[0], m[4], m[5]) for m in LINE.findall(runs[0][0])]  # what does not depend on the random answers
    for line in runs[0][0].splitlines():
        if line and not LINE.match(line) and not line.startswith("exported:"):
            assert line in readme, line
