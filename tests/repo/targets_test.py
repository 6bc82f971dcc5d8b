"""Every source file is built and every test is run: it stands in the CMakeLists.txt of its own folder. And what a device's library
shares with the worker is all in the digest by which they know each other."""

import fnmatch
import pathlib
import posixpath
import re

import source_tree

_SOURCES = re.compile(r"(common|server|worker|client|tests)/.*\.(cc|cu)$|tests/.*_test\.py$")


def cmake_words(text):
    """The words of a CMakeLists.txt, with foreach(name item ...) written out."""
    text = re.sub(r"(?m)#.*$", "", text)
    for match in re.findall(r"foreach\((\w+)((?:\s+[\w.-]+)+)\s*\)(.*?)endforeach\(", text, re.S):
        name, items, body = match
        text += " ".join(body.replace(f"${{{name}}}", item) for item in items.split())
    return set(re.split(r"[\s()\";]+", text))


def not_built(tree):
    found = []
    for path in tree:
        if not _SOURCES.match(path):
            continue
        words = cmake_words(tree.get(f"{source_tree.folder(path)}/CMakeLists.txt", ""))
        name = pathlib.PurePosixPath(path).name
        if not any(word == name or word.endswith(f"/{name}") for word in words):
            found.append(f"{path}: in no target of {source_tree.folder(path)}/CMakeLists.txt")
    return found


def not_in_the_digest(tree):
    """Headers that those of worker/CMakeLists.txt's digest read, and that are not in it."""
    words = re.search(r"file\(GLOB _device_headers CONFIGURE_DEPENDS([^)]*)\)", tree["worker/CMakeLists.txt"]).group(1).split()
    patterns = [posixpath.normpath(f"worker/{word}") for word in words]
    shared = [path for path in tree if any(fnmatch.fnmatch(path, p) and path.count("/") == p.count("/") for p in patterns)]
    return sorted({f"{path} reads {included}, which is not in the digest of worker/CMakeLists.txt" for path in shared
                   for _, included, _ in source_tree.includes(tree[path]) if included in tree and included not in shared})


def test_every_source_is_in_a_target_and_every_test_in_ctest():
    source_tree.assert_none(not_built(source_tree.repository()))


def test_a_library_and_its_worker_know_each_other_by_all_that_they_share():
    source_tree.assert_none(not_in_the_digest(source_tree.repository()))
    lists = "file(GLOB _device_headers CONFIGURE_DEPENDS backend/*.h ../common/a.h)"
    tree = {"worker/CMakeLists.txt": lists, "worker/backend/b.h": '#include "common/a.h"\n', "common/a.h": "",
            "worker/backend/cuda/c.h": '#include "common/d.h"\n', "common/d.h": ""}
    assert not not_in_the_digest(tree), "what lies deeper is the library's own"
    assert len(not_in_the_digest({**tree, "common/a.h": '#include "common/d.h"\n'})) == 1


def test_a_forgotten_file_is_noticed():
    lists = {"tests/a/CMakeLists.txt": "stemma_test(b_test LABEL unit SOURCES b_test.cc helper.cc)  # c_test.cc\n"
                                       "foreach(_op linear norm)\n  stemma_test(${_op}_test SOURCES ${_op}_test.cc)\n"
                                       "endforeach()\nstemma_python_test(p COMMAND -m pytest tests/a/p_test.py)\n"}
    for name in ("b_test.cc", "helper.cc", "linear_test.cc", "norm_test.cc", "p_test.py"):
        assert not not_built({**lists, f"tests/a/{name}": ""}), name
    for name in ("c_test.cc", "qkv_test.cc", "other.cc", "b_test.py", "q_test.py"):
        assert len(not_built({**lists, f"tests/a/{name}": ""})) == 1, name
    assert len(not_built({**lists, "tests/d/b_test.cc": ""})) == 1
    assert len(not_built({"common/a.cc": "", "common/CMakeLists.txt": "stemma_library(c SOURCES b.cc)"})) == 1
