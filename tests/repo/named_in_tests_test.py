"""What users rely on by name is named in a test: error reasons, calls, metrics. And docs/ lists those that the code uses."""

import re

import source_tree

_TABLE = "common/base/error_reasons.cc"
_ROW = re.compile(r'\{Reason::(k\w+), "([A-Z_]+)", StatusCode::k(\w+), ')
_METRIC = re.compile(r"`((?:actor|prefix|plan|predicted|measured|offload|time|ranks|perf)/[a-z0-9_/]+)`")
_METRIC_IN_CODE = re.compile(r'"((?:actor|prefix|plan|predicted|measured|offload|time|ranks|perf)/[a-z0-9_]*[a-z0-9])"')


def _line_of(text, position):
    return text.count("\n", 0, position) + 1


def documented_reasons(tree):
    """{reason: code} of the table in docs/errors.md."""
    rows = re.findall(r"(?m)^\| ([A-Z_]+) \| ([^|]+) \|", tree["docs/errors.md"])
    return {word: code for code, row in rows for word in re.findall(r"\b[A-Z][A-Z_]+\b", row)}


def reasons_of_the_code(tree):
    """{reason: (enumerator, code)} of the table in the code."""
    return {name: (enumerator, re.sub(r"(?<!^)(?=[A-Z])", "_", code).upper())
            for enumerator, name, code in _ROW.findall(tree[_TABLE])}


def reasons_not_documented(tree):
    documented = documented_reasons(tree)
    return [f"{_TABLE}: {name} with {code} is not in docs/errors.md"
            for name, (_, code) in reasons_of_the_code(tree).items() if documented.get(name) != code]


def reasons_never_made(tree):
    product = "\n".join(t for p, t in tree.items()
                        if source_tree.is_cpp(p) and not p.startswith(("tests/", "common/base/error_reasons.")))
    made = {name for name, (enumerator, _) in reasons_of_the_code(tree).items()
            if re.search(rf"MakeError\(\s*Reason::{enumerator}\b", product)}
    return [f"docs/errors.md: nothing makes {reason}" for reason in sorted(set(documented_reasons(tree)) - made)]


def _tests(tree):
    return {p: t for p, t in tree.items() if p.startswith("tests/") and not p.startswith("tests/repo/") and
            (p.endswith((".cc", ".h", ".py")) or "/scenarios/" in p)}


def _missing(names, tree, what, pattern):
    texts = "\n".join(_tests(tree).values())
    return [f"{what} {name}: named in no test" for name in sorted(names) if not re.search(pattern.format(name), texts)]


def reasons_not_tested(tree):
    # A word of its own: not a gRPC code (StatusCode.NOT_FOUND) and not a part of another word.
    return _missing(documented_reasons(tree), tree, "error reason", r"(?<![\w.:]){}(?!\w)")


def calls_not_tested(tree):
    calls = {name for path, text in tree.items() if path.startswith("proto/stemma/")
             for name in re.findall(r"(?m)^\s*rpc (\w+)\(", text)}
    return _missing(calls, tree, "call", r"\b{}\b")


def documented_metrics(tree):
    return set(_METRIC.findall(tree.get("docs/metrics.md", "")))


def metrics_not_documented(tree):
    known = documented_metrics(tree)
    return [f"{path}:{_line_of(text, match.start())}: {match.group(1)} is not in docs/metrics.md"
            for path, text in tree.items() if path.startswith("server/protocol/") and source_tree.is_cpp(path)
            for match in _METRIC_IN_CODE.finditer(text) if match.group(1) not in known]


def metrics_never_made(tree):
    code = "\n".join(t for p, t in tree.items() if p.startswith(("server/", "worker/", "client/python/stemma/")))
    return [f"docs/metrics.md: nothing makes {name}" for name in sorted(documented_metrics(tree))
            if f'"{name}"' not in code]


def metrics_not_tested(tree):
    return _missing(documented_metrics(tree), tree, "metric", r"\b{}\b")


def test_every_error_reason_is_documented():
    source_tree.assert_none(reasons_not_documented(source_tree.repository()))


def test_every_documented_error_reason_is_made_and_named_in_a_test():
    tree = source_tree.repository()
    source_tree.assert_none(reasons_never_made(tree) + reasons_not_tested(tree))


def test_every_call_is_named_in_a_test():
    source_tree.assert_none(calls_not_tested(source_tree.repository()))


def test_every_metric_is_documented():
    source_tree.assert_none(metrics_not_documented(source_tree.repository()))


def test_every_documented_metric_is_made_and_named_in_a_test():
    tree = source_tree.repository()
    source_tree.assert_none(metrics_never_made(tree) + metrics_not_tested(tree))


_ERRORS = "| code | reason | when |\n|---|---|---|\n| UNAVAILABLE | STARTING, DRAINING | a |\n| INTERNAL | INTERNAL | b |\n"
_REASONS = ('{Reason::kStarting, "STARTING", StatusCode::kUnavailable, kServer},\n{Reason::kDraining, "DRAINING", '
            'StatusCode::kUnavailable, kServer},\n{Reason::kInternal, "INTERNAL", StatusCode::kInternal, kServer},\n')
_CODE = 'return MakeError(\n  Reason::kInternal, "x");\nMakeError(Reason::kStarting, "y"); MakeError(Reason::kDraining, "z");'


def test_an_unknown_reason_is_noticed():
    tree = {"docs/errors.md": _ERRORS, _TABLE: _REASONS, "server/protocol/a.cc": _CODE}
    assert documented_reasons(tree) == {"STARTING": "UNAVAILABLE", "DRAINING": "UNAVAILABLE", "INTERNAL": "INTERNAL"}
    assert reasons_of_the_code(tree)["STARTING"] == ("kStarting", "UNAVAILABLE")
    assert not reasons_not_documented(tree) and not reasons_never_made(tree)
    for before, after in (('"DRAINING"', '"STOPPING"'), ('"DRAINING", StatusCode::kUnavailable', '"DRAINING", StatusCode::kDataLoss')):
        assert before in _REASONS
        tree[_TABLE] = _REASONS.replace(before, after)
        assert len(reasons_not_documented(tree)) == 1, after
    tree[_TABLE] = _REASONS
    tree["server/protocol/a.cc"] = _CODE.replace("kDraining", "kStarting")
    assert len(reasons_never_made(tree)) == 1


def test_a_reason_or_call_without_test_is_noticed():
    tree = {"docs/errors.md": _ERRORS, "proto/stemma/v1/a.proto": "service S {\n  rpc Get(A) returns (B);\n}\n"}
    assert len(reasons_not_tested(tree)) == 3 and len(calls_not_tested(tree)) == 1
    tree["tests/a_test.cc"] = 'EXPECT_EQ(a, "STARTING"); b == "DRAINING"; client.Get();'
    tree["tests/b_test.py"] = "code == grpc.StatusCode.INTERNAL; c == kINTERNAL; GetAll()"
    assert len(reasons_not_tested(tree)) == 1 and not calls_not_tested(tree)
    del tree["tests/a_test.cc"]
    assert len(calls_not_tested(tree)) == 1


def test_a_metric_without_documentation_or_test_is_noticed():
    tree = {"docs/metrics.md": "| `actor/loss` | the loss |\n", "server/protocol/a.cc": 'm["actor/loss"] = 1;'}
    assert not metrics_not_documented(tree) and not metrics_never_made(tree) and len(metrics_not_tested(tree)) == 1
    tree["tests/a_test.cc"] = 'm["actor/loss"]'
    assert not metrics_not_tested(tree)
    tree["server/protocol/a.cc"] = 'm["actor/lr"] = 1;'
    assert len(metrics_not_documented(tree)) == 1 and len(metrics_never_made(tree)) == 1
