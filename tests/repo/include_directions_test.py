"""proto < common < {server, worker, client} < tests, and the order of the rooms inside each of them."""

import source_tree

_AREAS = {"proto": 0, "common": 1, "server": 2, "worker": 2, "client": 2, "tests": 3}
# From the top down: a folder includes itself and what stands below it, never a neighbour of its own line.
_ORDER = {
    "server": [["main"], ["rpc"], ["coordinator"], ["store"], ["protocol", "simulation"], ["planner"]],
    "worker": [["main"], ["rpc"], ["engine"], ["checkpoint"], ["schedule", "loss", "model"], ["ops", "optim"], ["backend"], ["memory", "parallel"]],
    "common": [["admission"], ["cost", "trace", "rpc"], ["model"], ["base"]],
    "client/cli": [["main_command.cc"], ["commands"], ["local", "trace"], ["calls"], ["output"]],
}
_LEVEL = {f"{area}/{name}": -level for area, lines in _ORDER.items() for level, names in enumerate(lines)
          for name in names}


def _area(path):
    if path.startswith(("stemma/", "google/rpc/")):
        return "proto"
    area = path.split("/")[0]
    return area if area in _AREAS and "/" in path else None


def _house(path):
    """The folder whose rooms have an order and that holds this path: "server", "client/cli"."""
    return next((house for house in _ORDER if path.startswith(house + "/")), None)


def _part(path):
    house = _house(path)
    return "/".join(path.split("/")[:house.count("/") + 2]) if house else _area(path)


def _allowed(path, included):
    source, target = _area(path), _area(included)
    if source != target:
        return _AREAS[target] < _AREAS[source]
    if not _house(path) or _house(path) != _house(included) or _part(path) == _part(included):
        return True
    return _LEVEL[_part(included)] < _LEVEL[_part(path)]


def _own_includes(tree):
    for path, text in tree.items():
        if source_tree.is_cpp(path) and _area(path):
            for number, included, line in source_tree.includes(text):
                if _area(included):
                    yield path, number, included, line


def wrong_directions(tree):
    unplaced = {_part(p) for p in tree if source_tree.is_cpp(p) and _house(p) and _part(p) not in _LEVEL}
    found = [f"{part}: has no place in the order of tests/repo/include_directions_test.py" for part in sorted(unplaced)]
    for path, number, included, line in _own_includes(tree):
        if not {_part(path), _part(included)} & unplaced and not _allowed(path, included):
            found.append(f"{path}:{number}: {line}")
    return found


def mutual_folders(tree):
    """Pairs of folders that include each other."""
    first = {}
    for path, number, included, line in _own_includes(tree):
        edge = source_tree.folder(path), source_tree.folder(included)
        if edge[0] != edge[1]:
            first.setdefault(edge, f"{path}:{number}: {line}")
    return [f"{place} | {first[b, a]}" for (a, b), place in first.items() if a < b and (b, a) in first]


def test_includes_go_down():
    source_tree.assert_none(wrong_directions(source_tree.repository()))


def test_no_two_folders_include_each_other():
    source_tree.assert_none(mutual_folders(source_tree.repository()))


def _flagged(path, included):
    return wrong_directions({path: f'#pragma once\n#include "{included}"\n'})


def test_an_upward_include_is_printed():
    assert _flagged("common/base/a.h", "server/planner/planner.h") == ['common/base/a.h:2: #include "server/planner/planner.h"']
    for path, included in (("server/planner/a.cc", "worker/ops/head.h"), ("client/cli/calls/a.cc", "server/rpc/server.h"),
                           ("worker/ops/a.cc", "client/cli/calls/submit.h"), ("worker/engine/a.h", "tests/testing/tensors.h"),
                           ("server/protocol/a.h", "server/rpc/server.h"), ("server/planner/a.h", "server/protocol/a.h"), ("server/coordinator/a.h", "server/rpc/server.h"),
                           ("server/store/a.h", "server/coordinator/a.h"), ("server/protocol/a.h", "server/store/a.h"),
                           ("server/rpc/a.h", "server/main/server_options.h"), ("worker/backend/cpu/a.h", "worker/ops/a.h"),
                           ("worker/model/a.h", "worker/checkpoint/a.h"), ("worker/checkpoint/a.h", "worker/engine/a.h"), ("worker/model/a.h", "worker/schedule/a.h"), ("worker/ops/a.h", "worker/optim/a.h"),
                           ("worker/memory/a.h", "worker/backend/a.h"), ("worker/parallel/a.h", "worker/memory/a.h"), ("worker/ops/a.h", "worker/loss/a.h"), ("worker/model/a.h", "worker/engine/a.h"),
                           ("common/base/a.h", "common/model/a.h"), ("common/cost/a.h", "common/trace/a.h"),
                           ("client/cli/output/a.h", "client/cli/calls/a.h"), ("client/cli/trace/a.h", "client/cli/local/a.h")):
        assert _flagged(path, included), path
    assert _flagged("server/extra/a.h", "common/base/a.h") and not _flagged("server/planner/a.h", "common/base/a.h")


def test_a_downward_include_passes():
    for path, included in (("tests/worker/ops/a.cc", "worker/ops/head.h"), ("worker/main/a.cc", "worker/backend/cpu/a.h"),
                           ("server/main/a.cc", "server/planner/a.h"), ("server/store/a.h", "server/protocol/a.h"), ("common/base/a.h", "stemma/v1/training.pb.h"),
                           ("worker/engine/fence/a.h", "worker/engine/b.h"), ("worker/optim/a.h", "worker/parallel/a.h"), ("common/base/a.h", "absl/status/status.h"),
                           ("client/cli/main_command.cc", "client/cli/commands/command.h")):
        assert not _flagged(path, included), path


def test_a_pair_of_folders_is_noticed():
    tree = {"tests/a/x.h": '#include "tests/b/y.h"\n', "tests/b/z.cc": '#include "tests/a/x.h"\n',
            "tests/c/z.cc": '#include "tests/a/x.h"\n'}
    assert len(mutual_folders(tree)) == 1
    del tree["tests/a/x.h"]
    assert not mutual_folders(tree)
