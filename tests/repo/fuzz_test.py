"""make fuzz (tests/fuzz): an input that ends a target is reported with the command that repeats it, and so is a control that
finds nothing."""

import sys

import pytest
import source_tree

sys.path.insert(0, str(source_tree.ROOT / "tests" / "fuzz"))
import fuzz  # noqa: E402

_FINE = 'echo "#9 DONE cov: 12 ft: 3"; echo "stat::number_of_executed_units: 77"'
_FINDS = 'echo "ERROR: AddressSanitizer: global-buffer-overflow"; echo "Test unit written to the/input"; exit 77'


@pytest.fixture
def build(tmp_path):
    """A build whose programs are scripts: write(target, what it does but for --write-seeds)."""
    (tmp_path / "fuzz").mkdir()

    def write(target, does):
        path = tmp_path / "fuzz" / f"{target}_fuzz"
        path.write_text(f'#!/bin/sh\ncase "$1" in --write-seeds=*) exit 0;; esac\necho "args: $*"\n{does}\n')
        path.chmod(0o755)
    write(fuzz.CONTROL, _FINDS)
    for target in fuzz.targets():
        write(target, _FINE)
    return tmp_path, write


def test_there_is_a_target_for_each_kind_of_input():
    assert {"request", "safetensors", "model_directory", "trace", "journal_rows", "journal_table", "witness",
            "calibration", "manifest"} <= set(fuzz.targets())


def test_a_run_without_a_find_says_what_was_tried(build, capsys):
    folder, _ = build
    assert fuzz.main(["--build", str(folder), "--seconds", "1"]) == 0
    said = capsys.readouterr().out
    for target in fuzz.targets():
        assert f"{target:16}        77 inputs,     12 edges\n" in said
        assert (folder / "corpus" / target).is_dir()
    assert "control          found" in said


def test_an_input_that_ends_a_target_fails_the_run_and_can_be_repeated(build, capsys):
    folder, write = build
    write("trace", _FINDS)
    assert fuzz.main(["--build", str(folder), "--target", "trace", "--target", "request", "--seconds", "3"]) == 1
    said = capsys.readouterr().out
    assert f"trace: again: {folder / 'fuzz' / 'trace_fuzz'} the/input" in said
    assert "-max_total_time=3" in said and "ENDED BY AN INPUT" in said
    assert "safetensors" not in said


@pytest.mark.parametrize("does, why", [(_FINE, "was not found"), ("exit 1", "for another reason")])
def test_a_control_that_does_not_find_its_mistake_fails_the_run(build, capsys, does, why):
    folder, write = build
    write(fuzz.CONTROL, does)
    assert fuzz.main(["--build", str(folder), "--target", "trace"]) == 1
    assert why in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--target", "nothing"], ["--seconds", "0"], ["--jobs", "0"]])
def test_wrong_use_is_refused(arguments):
    with pytest.raises(SystemExit) as refused:
        fuzz.main(arguments)
    assert refused.value.code == 2
