"""cmake/tidy.py reads sources in units and still names each finding's source, that of none else, and misses none."""

import sys

import source_tree

sys.path.insert(0, str(source_tree.ROOT / "cmake"))
import tidy  # noqa: E402

RIGHT = "namespace { int Twice(int count) { return 2 * count; } }\nint Right() { return Twice(1); }\n"
# Right alone, and in no unit with the one above.
SAME_NAME = "namespace { int Twice(int count) { return count + count; } }\nint SameName() { return Twice(2); }\n"
WRONG = "namespace { int Thrice(int Count) { return 3 * Count; } }\nint Wrong() { return Thrice(1); }\n"


def source(folder, name, text, flags="-DONE"):
    path = folder / f"{name}.cc"
    path.write_text(text)
    command = f"/usr/bin/c++ {flags} -Winvalid-pch -include /no/cmake_pch.hxx -o {name}.o -c {path}"
    return tidy.Source({"file": str(path), "directory": str(folder), "command": command})


def room(tmp_path):
    folder = tmp_path / "worker"  # .clang-tidy's list of rooms decides which headers are ours
    folder.mkdir()
    return folder


def test_a_finding_is_of_its_source_alone(tmp_path):
    folder = room(tmp_path)
    unit = [source(folder, name, text) for name, text in (("a", RIGHT), ("b", SAME_NAME), ("c", WRONG))]
    findings = tidy.Tidy().findings(unit)
    assert len(findings) == 1
    assert f"{folder}/c.cc:1" in findings[0] and "invalid case style for parameter 'Count'" in findings[0]


def test_sources_that_do_not_compile_together_are_read_apart(tmp_path):
    folder = room(tmp_path)
    unit = [source(folder, "a", RIGHT), source(folder, "b", SAME_NAME)]
    assert "redefinition of 'Twice'" in tidy.Tidy().read(unit).stdout
    assert tidy.Tidy().findings(unit) == []


def test_a_source_that_does_not_compile_is_a_finding(tmp_path):
    findings = tidy.Tidy().findings([source(room(tmp_path), "a", "int half( {\n")])
    assert len(findings) == 1 and "error" in findings[0]


def test_each_source_is_in_one_unit_of_its_folder_and_flags(tmp_path):
    found = []
    for folder, flags, count in (("x", "-DONE", 17), ("y", "-DONE", 1), ("y", "-DTWO", 3)):
        (tmp_path / folder).mkdir(exist_ok=True)
        found += [source(tmp_path / folder, f"{flags[2:]}{i}", "", flags) for i in range(count)]
    units = tidy.units(found[::-1])
    assert [len(unit) for unit in units] == [6, 6, 5, 3, 1]
    assert sorted(one.path for unit in units for one in unit) == sorted(one.path for one in found)
    for unit in units:
        assert len({(one.flags, one.path.rsplit("/", 1)[0]) for one in unit}) == 1
