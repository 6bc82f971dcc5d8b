"""make soak (tests/soak): its table names what exists, and a failure says how to see it again."""

import dataclasses
import re
import sys

import pytest
import source_tree

sys.path.insert(0, str(source_tree.ROOT / "tests" / "soak"))
import soak  # noqa: E402

_TREE = source_tree.repository()


def _missing(entry, tree):
    """What an entry names and the tree does not hold."""
    programs = re.findall(r"stemma_test\((\w+)", "\n".join(text for path, text in tree.items() if path.endswith("CMakeLists.txt")))
    problems = [part for part in entry.command if part.startswith("tests/") and part not in tree]
    problems += [part for part in entry.command
                 if part.startswith("{build}/") and part.removeprefix("{build}/tests/") not in programs]
    return problems + [name for name, _ in entry.environment
                       if not any(f'"{name}"' in text for path, text in tree.items() if path in entry.command)]


def test_the_table_names_what_exists_and_passes_the_seed():
    for entry in soak.TABLE:
        assert not _missing(entry, _TREE), entry.name
        assert sum("{seed}" in text for text in (*entry.command, *(value for _, value in entry.environment))) == 1, entry.name


@pytest.mark.parametrize("entry", [soak.Entry("a", "", ("{python}", "tests/hostile/no_such.py")),
                                   soak.Entry("b", "", ("{build}/tests/no_such_test",)),
                                   soak.Entry("c", "", ("{python}", "tests/hostile/fuzz_streams.py"), (("NO_SUCH", "1"),))])
def test_a_name_of_nothing_is_noticed(entry):
    assert len(_missing(entry, _TREE)) == 1


_FAILS = soak.Entry("odd", "", ("{python}", "-c", "import os, sys; sys.exit(int(sys.argv[1]) % 2 == int(os.environ['S']) % 2)", "{seed}"),
                    (("S", "{seed}"),))
_PASSES = soak.Entry("fine", "", ("{python}", "-c", "pass", "{seed}"))


def test_a_failure_ends_the_run_and_says_what_to_type(capfd):
    assert soak.main(["--rounds", "3"], (_PASSES, _FAILS)) == 1
    said = capfd.readouterr().out
    again = re.search(r'again: make soak ARGS="--only odd --seed (\d+)"', said)
    assert again and int(again[1]) in soak.SEEDS
    assert f"S={again[1]} " in said, "it prints what it runs"
    assert soak.main(["--only", "odd", "--seed", again[1]], (_PASSES, _FAILS)) == 1
    assert f"round 1 of 1, odd, seed {again[1]}:" in capfd.readouterr().out


def test_rounds_draw_fresh_seeds(capfd):
    assert soak.main(["--rounds", "4"], (_PASSES,)) == 0
    assert len(set(re.findall(r"seed (\d+):", capfd.readouterr().out))) > 1


def test_faults_are_struck_until_there_are_enough_and_a_failure_says_its_seed(capfd):
    fine, odd = (dataclasses.replace(entry, faults=10) for entry in (_PASSES, _FAILS))
    assert soak.main(["--faults", "25", "--seed", str(soak.SEEDS[-1])], (_FAILS, fine)) == 0
    said = capfd.readouterr().out
    assert re.findall(r"seed (\d+):", said) == [str(soak.SEEDS[-1]), "1", "2"]
    assert re.findall(r"^(\d+) faults in", said, re.MULTILINE) == ["10", "20", "30"]
    assert soak.main(["--faults", "1000", "--seed", "7"], (odd,)) == 1
    said = capfd.readouterr().out
    failed = int(re.search(r'again: make soak ARGS="--only odd --seed (\d+)"', said)[1])
    assert failed in (7, 8) and f"{10 * (failed - 7)} faults in" in said.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--seed", "3"], ["--only", "fine", "--seed", "0"], ["--rounds", "0"],
                                       ["--faults", "0"], ["--faults", "9", "--only", "fine"], ["--faults", "9", "--rounds", "2"]])
def test_wrong_use_is_refused(arguments):
    with pytest.raises(SystemExit) as refused:
        soak.main(arguments, (_PASSES,))
    assert refused.value.code == 2
