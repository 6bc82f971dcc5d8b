"""Sources of one target can be compiled together, and mean then what each means alone.

Where two sources of a target use one name for a type or a constant, a unit of both does not compile. Functions are what
nobody would notice: in a unit they are one set of overloads, and a call may find another one than it does alone. So no
function in an unnamed namespace has the name of one in another source of its target, nor of one that a header declares
which another source includes."""

import collections
import pathlib
import re

import source_tree

# A definition or declaration that begins a line: a type, then the name.
_FUNCTION = re.compile(r"(?!using |return |else |namespace |struct |class |enum |union |template|extern |typedef |friend |TEST)"
                       r"(?:\[\[\w+\]\] )?[A-Za-z_][\w:<>,&*\s]*?[ &*>](\w+)\(")
_CALL = re.compile(r"(?:stemma|add)_\w+\(\s*([\w-]+)([^)]*)\)")


def functions(text):
    """(those in unnamed namespaces, the others) that stand in no class and in no function."""
    unnamed, named, inside = set(), set(), False
    for code, line in zip(source_tree.cpp_code(text).split("\n"), text.split("\n")):
        if line in ("namespace {", "}  // namespace"):
            inside = line == "namespace {"
        elif match := _FUNCTION.match(code):
            (unnamed if inside else named).add(match.group(1))
    return unnamed, named


def targets(tree):
    """The sources of each target that has several."""
    found = collections.defaultdict(list)
    for path, text in tree.items():
        if pathlib.PurePosixPath(path).name != "CMakeLists.txt":
            continue
        for name, words in _CALL.findall(re.sub(r"(?m)#.*$", "", text)):
            sources = [f"{source_tree.folder(path)}/{word}" for word in words.split() if word.endswith(".cc")]
            found[f"{source_tree.folder(path)}: {name}"] += [source for source in sources if source in tree]
    return {name: sources for name, sources in found.items() if len(sources) > 1}


def used_twice(tree):
    parsed = {path: functions(text) for path, text in tree.items() if path.endswith((".h", ".cc"))}
    included = {path: {name for _, name, _ in source_tree.includes(tree[path]) if name in parsed} for path in parsed}
    found = []
    for target, sources in targets(tree).items():
        for source in sources:
            for other in sources:
                if other == source:
                    continue
                meets = {name: other for name in parsed[other][0] | parsed[other][1]}
                for header in included[other] - included[source]:
                    meets |= {name: header for name in parsed[header][1]}
                found += [f"{source}: {name}() is also in {meets[name]}, and {target} compiles both"
                          for name in sorted(parsed[source][0] & meets.keys())]
    return found


def test_no_two_sources_of_a_target_have_a_function_of_one_name():
    source_tree.assert_none(used_twice(source_tree.repository()))


def test_functions_are_found_where_they_stand():
    text = ("namespace a {\nnamespace {\n\nint One(int x) { return Two(x); }\n// int Three();\ntemplate <typename T>\n"
            "std::vector<T>& Four(\n    int x) {\n  int Five(6);\n}\n\n}  // namespace\n\nabsl::Status C::Six() {}\n"
            "std::string* Seven();\nusing Eight = int(int);\n}  // namespace a\n")
    assert functions(text) == ({"One", "Four"}, {"Seven"})


def test_a_name_that_two_sources_use_is_noticed():
    lists = {"a/CMakeLists.txt": "stemma_library(a SOURCES x.cc y.cc  # z.cc\n  PUBLIC b)\nstemma_test(z SOURCES z.cc)\n"}
    unnamed = "namespace {{\nint {}() {{ return 1; }}\n}}  // namespace\n".format
    for other in (unnamed("Same"), "int Same(int x) { return x; }\n", '#include "a/h.h"\n'):
        tree = {**lists, "a/x.cc": unnamed("Same"), "a/y.cc": other, "a/h.h": "int Same(double x);\n", "a/z.cc": unnamed("Same")}
        assert used_twice(tree), other
    tree = {**lists, "a/x.cc": unnamed("Same"), "a/y.cc": unnamed("Other"), "a/z.cc": unnamed("Same")}
    assert not used_twice(tree)
