"""make sanitize (tests/sanitize): its table names tests and controls that exist, and a control that is not reported fails it."""

import dataclasses
import re
import sys

import pytest
import source_tree
import targets_test

sys.path.insert(0, str(source_tree.ROOT / "tests" / "sanitize"))
import sanitize  # noqa: E402

_TREE = source_tree.repository()


def _built(tree):
    """Words of every CMakeLists.txt under tests: the names of all tests among them."""
    return set().union(*(targets_test.cmake_words(text) for path, text in tree.items()
                         if path.startswith("tests/") and path.endswith("CMakeLists.txt")))


def test_the_table_names_what_exists_once():
    built = _built(_TREE)
    for preset in sanitize.TABLE:
        names = [*preset.tests, *preset.processes, *(control.command[0] for control in preset.controls)]
        source_tree.assert_none([f"{preset.name}: {name} is no test" for name in names if name not in built])
        assert len(set(preset.tests)) == len(preset.tests), preset.name
        assert f'"name": "{preset.name}"' in _TREE["CMakePresets.json"]
    assert "no_such_test" not in built


def test_every_test_of_the_store_runs_under_both():
    of_store = re.findall(r"(?:^|[ (])(\w+) *LABEL storage", _TREE["tests/server/store/CMakeLists.txt"] + "\n" +
                          _TREE["tests/server/coordinator/CMakeLists.txt"])
    names = {f"{name}_test" for name in ("database", "journal", "journal_crash", "journal_damage", "spool", "spool_damage")}
    for preset in sanitize.TABLE:
        assert (names | set(of_store)) - {"_name}_test"} <= set(preset.tests), preset.name


@pytest.fixture
def build(tmp_path):
    (tmp_path / "tests").mkdir()

    def write(does):
        path = tmp_path / "tests" / "race_control"
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)
        return tmp_path
    return write


_CONTROL = sanitize.Control(("race_control",), "ThreadSanitizer: data race")


def test_a_control_that_is_reported_is_no_problem(build):
    assert not sanitize.control_problem(_CONTROL, build('echo "WARNING: ThreadSanitizer: data race"; exit 66'), {})


@pytest.mark.parametrize("does", ["echo 2", "exit 66", 'echo "ThreadSanitizer: data race"'])
def test_a_control_that_is_not_reported_is_noticed(build, does):
    assert "race_control" in sanitize.control_problem(_CONTROL, build(does), {})


def test_a_failed_build_and_a_failed_test_are_noticed(monkeypatch, tmp_path):
    preset = dataclasses.replace(sanitize.TABLE[1], controls=())
    monkeypatch.setattr(sanitize, "ROOT", tmp_path)
    for failing in ("--build", "ctest"):
        monkeypatch.setattr(sanitize, "call", lambda *command, environment=(): int(failing in command))
        for words in ([], ["spool"], ["e2e_gang"]):
            assert sanitize.sanitize(preset, words, 1), (failing, words)
    monkeypatch.setattr(sanitize, "call", lambda *command, environment=(): 0)
    for words in ([], ["spool"], ["e2e_gang"], ["no_such"]):
        assert not sanitize.sanitize(preset, words, 1), words


def test_what_a_process_reports_fails_the_preset_and_so_does_a_control_that_reports_nothing(monkeypatch, tmp_path):
    preset = sanitize.TABLE[1]
    monkeypatch.setattr(sanitize, "ROOT", tmp_path)
    said = {"race_control": "", "ctest": ""}

    def call(*command, environment=()):
        options = dict(environment)["TSAN_OPTIONS"]
        path = next(option.partition("=")[2] for option in options.split(":") if option.startswith("log_path="))
        program = sanitize.pathlib.Path(command[0]).name
        if said[program]:
            sanitize.pathlib.Path(f"{path}.7").write_text(said[program])
        return 0

    monkeypatch.setattr(sanitize, "call", call)
    assert sanitize.sanitize_processes(preset, ["e2e_gang"], 1) == ["tsan: race_control as a process is not reported"]
    said["race_control"] = "WARNING: ThreadSanitizer: data race (pid=7)"
    assert not sanitize.sanitize_processes(preset, ["e2e_gang"], 1)
    said["ctest"] = "WARNING: ThreadSanitizer: data race (pid=8)"
    assert sanitize.sanitize_processes(preset, ["e2e_gang"], 1) == ["tsan: report.7:\nWARNING: ThreadSanitizer: data race (pid=8)"]
