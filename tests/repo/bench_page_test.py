"""docs/benchmarks.md (tests/bench/page.py): a part that is taken anew changes its section and the targets, and nothing else."""

import sys

import pytest
import source_tree

sys.path.insert(0, str(source_tree.ROOT / "tests" / "bench"))
import page  # noqa: E402

_ORDER = ["Shapes", "Planner", "Storage"]
_SHAPES = ["Taken by A.", "", "| a | b |", "|---|---:|", "| 1 | 2 |", "", "* met: fast enough (target 1)"]
_STORAGE = ["Taken by B.", "", *page.verdict_lines([("small", True), ("soon", False)])]
_PAGE = page.join({"Shapes": _SHAPES, "Storage": _STORAGE})


def test_a_page_is_its_sections():
    sections = page.split(_PAGE)
    assert list(sections) == ["Shapes", "Storage", page.TARGETS]
    assert sections["Shapes"] == _SHAPES and sections["Storage"] == _STORAGE
    assert page.replaced(_PAGE, {}, _ORDER) == _PAGE
    assert _PAGE.startswith("# Benchmarks\n") and _PAGE.endswith("\n") and "\n\n\n" not in _PAGE


def test_a_new_section_replaces_its_own_and_stands_in_its_place():
    new = page.replaced(_PAGE, {"Storage": ["Taken by C."]}, _ORDER)
    assert page.split(new)["Storage"] == ["Taken by C."]
    assert page.split(new)["Shapes"] == _SHAPES
    added = page.replaced(new, {"Planner": ["Taken by D."]}, _ORDER)
    assert list(page.split(added)) == [*_ORDER, page.TARGETS]
    assert page.split(added)["Storage"] == ["Taken by C."]


def test_a_first_section_makes_the_page():
    assert list(page.split(page.replaced("", {"Planner": ["Taken by D."]}, _ORDER))) == ["Planner", page.TARGETS]


def test_targets_are_those_of_the_sections_that_stand():
    assert page.split(_PAGE)[page.TARGETS] == ["2 of 3 are met; each stands at the end of its section.", "", "Missed:", "",
                                               "* Storage: soon"]
    better = page.replaced(_PAGE, {"Storage": page.verdict_lines([("soon", True)])}, _ORDER)
    assert page.split(better)[page.TARGETS] == ["2 of 2 are met; each stands at the end of its section."]


def test_pairs_that_differ_decide_nothing_near_the_target():
    assert page.reaches([0.97, 0.98, 0.99], 0.97) is True and page.reaches([0.95, 0.96, 0.98], 0.97) is False
    assert page.reaches([0.83, 0.98, 1.10], 0.97) is None and page.reaches([0.83, 0.96, 1.10], 0.97) is None
    assert page.reaches([0.83, 0.86, 0.94], 0.97) is False, "no pair reaches it"
    assert page.reaches([0.97, 1.10, 1.40], 0.97) is True, "every pair reaches it"
    storage = ["Taken by B.", "", *page.verdict_lines([("small", True), ("soon", None), ("cheap", False)])]
    assert storage[-2] == "* not decided: soon"
    assert page.split(page.replaced(_PAGE, {"Storage": storage}, _ORDER))[page.TARGETS] == [
        "2 of 4 are met; each stands at the end of its section.", "", "Missed:", "", "* Storage: cheap", "",
        "Not decided, for the pairs of that run differ by more:", "", "* Storage: soon"]


def test_a_section_of_an_older_page_goes():
    older = _PAGE + "\n## What was\n\nOld.\n"
    assert page.replaced(older, {}, _ORDER) == _PAGE


def test_a_section_without_a_place_and_a_title_twice_are_refused():
    with pytest.raises(ValueError, match="Nowhere"):
        page.replaced(_PAGE, {"Nowhere": ["a"]}, _ORDER)
    with pytest.raises(ValueError, match="Shapes"):
        page.split(_PAGE + "\n## Shapes\n\nAgain.\n")


def test_every_section_of_the_page_says_how_it_was_taken():
    sections = page.split((source_tree.ROOT / "docs" / "benchmarks.md").read_text())
    assert sections.keys() - {page.TARGETS}
    for title, lines in sections.items():
        if title == page.TARGETS:
            assert lines == page.targets({t: body for t, body in sections.items() if t != page.TARGETS})
        else:
            assert lines[0].startswith(("Taken by `make bench", "Taken by `make gpu-bundle")) and " at commit " in lines[0], title
