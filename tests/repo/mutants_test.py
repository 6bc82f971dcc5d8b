"""The table of mutants (tests/mutation) fits the source: each one's old text stands where it says, its tests exist."""

import dataclasses
import pathlib
import sys

import source_tree

sys.path.insert(0, str(source_tree.ROOT / "tests" / "mutation"))
import run as command  # noqa: E402
import table  # noqa: E402


def test_every_mutant_applies_and_its_tests_exist():
    mutants, problems = table.read()
    tree = source_tree.repository()
    problems += [p for mutant in mutants for p in (table.place_problem(mutant, tree), table.verdict_problem(mutant)) if p]
    source_tree.assert_none(problems + table.test_problems(mutants, tree))


def test_every_table_file_holds_mutants():
    mutants, _ = table.read()
    filled = {mutant.table for mutant in mutants}
    source_tree.assert_none([f"{path.name}: no mutant" for path in table.FOLDER.glob("*.toml") if path.name not in filled])
    assert any(m.table == "control.toml" and m.survives.startswith("equivalent") for m in mutants)


_TREE = {"common/a.cc": "int F(int a) { return a + 1; }\nint G(int a) { return a + 1; }\n",
         "tests/common/CMakeLists.txt": "set(_here ${CMAKE_CURRENT_SOURCE_DIR})\nstemma_test(a_test LABEL unit SOURCES a_test.cc)\n"
                                        "foreach(_x b c)\n  stemma_python_test(e2e_${_x} LABEL e2e COMMAND -m pytest\n"
                                        "    ${_here}/${_x}_test.py)\nendforeach()\n",
         "tests/common/a_test.cc": "TEST(ATest, Adds) {}\nTEST_P(BTest, Adds) {}\n",
         "tests/common/b_test.py": "def test_it():\n    pass\n\nclass BTest:\n    def test_more(self):\n        pass\n",
         "tests/common/c_test.py": "\n"}
_GOOD = table.Mutant(name="m", breaks="it", file="common/a.cc", old="a + 1", new="a - 1", tests=("a_test",), of=2)


def test_a_mutant_that_does_not_fit_is_noticed():
    assert not table.place_problem(_GOOD, _TREE)
    for change, part in (({"file": "common/b.cc"}, "no file"), ({"of": 1}, "2 times"), ({"old": "a + 2", "of": 1}, "0 times"),
                         ({"at": 3}, "from 1 to 2"), ({"new": "a + 1"}, "changes nothing")):
        assert part in table.place_problem(dataclasses.replace(_GOOD, **change), _TREE), change
    assert not table.verdict_problem(dataclasses.replace(_GOOD, survives="equivalent: both orders are equal"))
    for verdict in ("equivalent", "open:", "fine: it is all right", "open: so"):
        assert table.verdict_problem(dataclasses.replace(_GOOD, survives=verdict)), verdict


def test_a_test_that_does_not_exist_is_noticed():
    for name in ("a_test", "a_test::ATest.Adds", "a_test::ATest.*", "a_test::ATest.A*:BTest.Adds", "a_test::All/BTest.Adds/0",
                 "a_test::*/BTest.Adds/Case", "e2e_b::test_it", "e2e_b::BTest.test_more", "e2e_c"):
        assert not table.test_problems([dataclasses.replace(_GOOD, tests=(name,))], _TREE), name
    for name in ("b_test", "a_test::ATest.Subtracts", "a_test::ATest.Adds:CTest.*", "e2e_b::test_other", "e2e_c::test_it"):
        assert len(table.test_problems([dataclasses.replace(_GOOD, tests=(name,))], _TREE)) == 1, name


def test_a_table_with_wrong_fields_is_noticed():
    _, problems = table.parse("[[mutant]]\nname = 'm'\nfile = 'f'\nold = 'a'\nnew = ''\ntests = ['t']\nwhy = 'w'\n", "t.toml")
    assert [("breaks" in p or "why" in p) for p in problems] == [True, True]
    mutants, problems = table.parse("[[mutant]]\nname='m'\nbreaks='b'\nfile='f'\nold='a'\nnew=''\ntests=['t']\n", "t.toml")
    assert not problems and mutants[0].new == "" and mutants[0].tests == ("t",)


def test_the_right_place_is_changed():
    text = _TREE["common/a.cc"]
    for at, expected in ((1, text.replace("a + 1", "a - 1", 1)), (2, "a - 1".join(text.rsplit("a + 1", 1)))):
        assert dataclasses.replace(_GOOD, at=at).applied(text) == expected
    assert table.occurrences("aaa", "aa") == 2 and table.occurrences("aaa", "a") == 3


def test_shards_and_samples_are_parts_of_the_table():
    mutants = [dataclasses.replace(_GOOD, name=f"m{i}", file=f"f{i % 3}", table="t.toml") for i in range(10)]
    control = dataclasses.replace(_GOOD, name="control", table="control.toml")
    names = lambda chosen: [m.name for m in chosen]
    parts = [names(command.choose([control, *mutants], [], (i, 3), None, 0)) for i in (1, 2, 3)]
    assert all(part[0] == "control" for part in parts)
    assert sorted(sum((part[1:] for part in parts), [])) == sorted(names(mutants))
    assert names(command.choose(mutants, ["f1"], None, None, 0)) == ["m1", "m4", "m7"]
    assert names(command.choose(mutants, [], None, 4, 7)) == names(command.choose(mutants, [], None, 4, 7))
    assert len(command.choose(mutants, [], None, 4, 7)) == 4


class _FakeScratch:
    """Builds and runs nothing: the text of the file says what happens."""

    def __init__(self):
        self.text, self.written = "right", []

    def read(self, name):
        return self.text

    def write(self, name, text):
        self.text = text
        self.written.append(text)

    def build(self, targets):
        return "broken" not in self.text, "error: broken"

    def run_test(self, command_line, environment, folder, timeout_s):
        failed = {"wrong": 1, "slow": None}.get(self.text, 0)
        return failed, "", 0.1


def test_verdicts_follow_what_the_tests_did_and_the_text_is_taken_back():
    scratch = _FakeScratch()
    session = command.Session(scratch, [])
    session._ctest = {"t": (["t"], {}, ".", 10)}
    session._limits = {"t": 1}
    for new, verdict in (("wrong", "killed"), ("slow", "killed"), ("other", "SURVIVED"), ("broken", "did not build")):
        mutant = dataclasses.replace(_GOOD, file="f", old="right", new=new, tests=("t",), of=1)
        result = session.judge(mutant)
        assert result.verdict == verdict and scratch.text == "right", new
        listed = dataclasses.replace(mutant, survives="equivalent: says the table")
        assert result.as_listed() == (verdict == "killed")
        assert session.judge(listed).as_listed() == (verdict == "SURVIVED")
    text, good = command.summary([command.Result(_GOOD, "killed", 1), command.Result(_GOOD, "SURVIVED", 1)])
    assert "50.0 % of the 2" in text and not good


def test_a_test_that_fails_on_the_unmutated_tree_judges_no_mutant():
    scratch = _FakeScratch()
    scratch.copy_checkout = scratch.configure = lambda: None
    scratch.tests = lambda: {name: ([name], {}, ".", 10) for name in "tu"}
    scratch.run_test = lambda line, *_: (1 if line == ["t"] or scratch.text != "right" else 0, "", 0.1)
    mutants = [dataclasses.replace(_GOOD, file="f", old="right", new="wrong", tests=(test,), of=1) for test in "tu"]
    session = command.Session(scratch, mutants)
    session.prepare()
    results = [session.judge(mutant) for mutant in mutants]
    assert [r.verdict for r in results] == ["not judged", "killed"]
    assert "t must pass on the unmutated tree" in command.line(results[0])
    text, good = command.summary(results)
    assert "1 not judged" in text and "100.0 % of the 1" in text and not good


def test_a_selector_becomes_the_filter_of_its_runner():
    files = {"b_test.py": "def test_it():\n", "c_test.py": "def test_it_too():\n"}
    narrowed = lambda line, selector: command.command_of((line,), selector, files.get)
    assert narrowed(["a_test"], "") == ["a_test"]
    assert narrowed(["a_test"], "A.B:A.C") == ["a_test", "--gtest_filter=A.B:A.C"]
    pytest = ["python", "-m", "pytest", "b_test.py", "c_test.py"]
    assert narrowed(pytest, "test_it") == ["python", "-m", "pytest", "b_test.py", "-k", "test_it"]
    assert narrowed(pytest, "test_it:test_it_too") == pytest + ["-k", "test_it or test_it_too"]
    assert narrowed(["python", "b_test.py"], "BTest.test_it")[-1] == "BTest.test_it"


def test_the_test_that_killed_is_named():
    for output, name in (("[ RUN      ] A.B\n[  FAILED  ] A.B (3 ms)\n[  FAILED  ] A.C\n", "A.B"),
                         ("[ RUN      ] A.B\nCheck failed\n", "A.B crashed"), ("FAILED tests/x_test.py::test_it - no\n", "test_it"),
                         ("FAIL: test_more (__main__.T)\n", "test_more"), ("", "exit status 1")):
        assert command.killer_of(1, output) == name
    assert command.killer_of(None, "") == "it did not end"
