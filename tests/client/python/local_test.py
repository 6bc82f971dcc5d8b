"""LocalServer with a program of the test's in the place of `stemma`."""

import os
import pathlib
import signal

import pytest
import stemma

NOTE_ARGUMENTS = """#!/bin/sh
printf '%s\\n' "$@" > "$0.arguments"
echo "it begins"
"""
FIND_READY = """while [ "$1" != --ready-file ]; do shift; done
"""
SERVE = """echo 127.0.0.1:7 > "$2.part" && mv "$2.part" "$2"
exec sleep 60
"""
STAYS = """trap '' TERM
echo 127.0.0.1:7 > "$2.part" && mv "$2.part" "$2"
while true; do sleep 0.1; done
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that makes a program of shell text, after which it is found by its path."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def make(text):
        path = tmp_path / "program"
        path.write_text(NOTE_ARGUMENTS + FIND_READY + text)
        path.chmod(0o755)
        return path

    return make


def arguments(program):
    """{option: value} of what the program was started with, after its command."""
    command, *rest = pathlib.Path(f"{program}.arguments").read_text().splitlines()
    assert command == "local" and rest.count("--die-with-parent") == 1
    rest.remove("--die-with-parent")
    return dict(zip(rest[::2], rest[1::2], strict=True))


def test_options_reach_the_program_and_those_that_are_not_given_do_not(program, tmp_path):
    path = program(SERVE)
    with stemma.LocalServer("m", binary=path, data=tmp_path / "d", dtype="fp32", schedule="dense", threads=3, config="run.yaml",
                            drain_timeout_s=7, workers=2, durability="replay") as server:
        given = arguments(path)
        assert server.address == "127.0.0.1:7" and server.data == tmp_path / "d"
    ready = given.pop("--ready-file")
    assert given == {"--data": str(tmp_path / "d"), "--listen": "127.0.0.1:0", "--model": "m", "--config": "run.yaml",
                     "--dtype": "fp32", "--schedule": "dense", "--threads": "3", "--drain-timeout": "7", "--workers": "2",
                     "--durability": "replay"}
    assert not pathlib.Path(ready).parent.exists()
    with stemma.LocalServer("m", binary=path):
        given = arguments(path)
    assert set(given) == {"--data", "--listen", "--ready-file", "--model", "--drain-timeout", "--durability"}


@pytest.mark.parametrize("options, durability", [
    ({}, "rewind"), ({"data": "d"}, None), ({"config": "run.yaml"}, None), ({"durability": "replay"}, "replay"),
    ({"config": "run.yaml", "durability": "rewind"}, "rewind")], ids=str)
def test_only_a_temporary_directory_without_a_configuration_rewinds_by_itself(program, tmp_path, monkeypatch, options, durability):
    monkeypatch.chdir(tmp_path)
    path = program(SERVE)
    with stemma.LocalServer("m", binary=path, **options):
        assert arguments(path).get("--durability") == durability


def test_a_program_that_does_not_end_is_killed_when_its_time_is_over(program):
    server = stemma.LocalServer("m", binary=program(STAYS), drain_timeout_s=3)
    assert server._stop_s == 43  # longer than `stemma local` leaves to its own processes
    server._stop_s = 0.2
    server.close()
    assert server.process.returncode == -signal.SIGKILL and not server.log.exists()
    server.close()  # again


def test_a_program_that_does_not_serve_in_time_is_ended_and_its_log_shown(program, tmp_path):
    with pytest.raises(stemma.StemmaError, match="^UNAVAILABLE: `stemma local` did not start within 1.5 s:\nit begins\n$") as error:
        stemma.LocalServer("m", binary=program('echo $$ > "$0.pid"\nexec sleep 60\n'), start_timeout_s=1.5)
    assert error.value.code == "UNAVAILABLE"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "program.pid").read_text()), 0)


def test_the_end_of_a_long_log_tells_why_a_program_ended(program):
    with pytest.raises(stemma.StemmaError, match=r"^UNAVAILABLE: `stemma local` did not start \(exit code 3\):\n1{3996}end\n$"):
        stemma.LocalServer("m", binary=program("head -c 5000 /dev/zero | tr '\\0' 1; echo end; exit 3\n"))
