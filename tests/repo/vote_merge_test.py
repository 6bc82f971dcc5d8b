"""Each number of a step merges as worker.proto says: the lists of server/protocol/vote_merge.cc are held to its comments."""

import re

import source_tree

_PROTO = "proto/stemma/internal/v1/worker.proto"
_LISTS = {"max": "kLargest", "min": "kSmallest", "total": "kTotals"}
_FIELD = re.compile(r"^  (?:double|uint64) (\w+) = \d+;(?:\s*// (\w+))?", re.M)


def said(proto):
    """{field of StepSums: the first word of its comment}."""
    return dict(_FIELD.findall(re.search(r"^message StepSums \{(.*?)^\}", proto, re.M | re.S).group(1)))


def merged(source):
    """{name in a list: how it merges}; a name in no list is added up."""
    return {name: how for how, names in _LISTS.items()
            for name in re.findall(r'"(\w+)"', re.search(rf"{names}\[\] = \{{(.*?)\}};", source, re.S).group(1))}


def differences(proto, source):
    says, does = said(proto), merged(source)
    return [f"{field}: worker.proto says {word or 'nothing'}, vote_merge.cc does {does.get(field, 'add')}"
            for field, word in says.items() if word != does.get(field, "add")] + \
           [f"{name}: stands in a list of vote_merge.cc, and is no field" for name in does if name not in says]


def test_numbers_merge_as_the_proto_says():
    tree = source_tree.repository()
    assert len(said(tree[_PROTO])) > 30
    source_tree.assert_none(differences(tree[_PROTO], tree["server/protocol/vote_merge.cc"]))


def test_what_differs_is_noticed():
    proto = "message StepSums {\n  double a = 1;  // max\n  uint64 b = 2;  // total; x\n  double c = 3;\n}\n"
    lists = 'kLargest[] = {"a"};kSmallest[] = {};kTotals[] = {"b", "d"};'
    assert differences(proto, lists) == ["c: worker.proto says nothing, vote_merge.cc does add",
                                         "d: stands in a list of vote_merge.cc, and is no field"]
    assert len(differences(proto, lists.replace('"a"', "").replace('"d"', '"a"'))) == 2
