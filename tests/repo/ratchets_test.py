"""No function above 70 lines, no file above 400. What is longer stands in ratchets.txt, which may only shrink."""

import ast
import re

import source_tree

_MAX_FUNCTION_LINES, _MAX_FILE_LINES = 70, 400
_LIST = source_tree.ROOT / "tests" / "repo" / "ratchets.txt"


def cpp_functions(text):
    """(name, lines) of each function body outside other functions."""
    code = re.sub(r"(?m)^\s*#.*(\\\n.*)*$", "", source_tree.cpp_code(text))
    found, stack, begin = [], [], 0
    line, head_line = 1, 1
    for position, char in enumerate(code):
        if char == "\n":
            line += 1
        inside = any(kind == "function" for kind, *_ in stack)
        if not code[begin:position].strip():
            head_line = line
        if char == "{":
            head = code[begin:position].strip()
            initializer = stack and stack[-1][0] == "braces"
            stack.append(("block" if inside else "braces" if initializer else _kind(head), head, head_line))
            if stack[-1][0] != "braces":
                begin = position + 1
        elif char == "}" and stack:
            kind, head, first = stack.pop()
            if kind == "function":
                found.append((_name(head), line - first + 1))
            if kind != "braces":
                begin = position + 1
        elif char == ";" and not (stack and stack[-1][0] == "braces"):
            begin = position + 1
    return found


def _kind(head):
    """What the brace that follows `head` outside of functions opens; `braces` is an initializer."""
    head = re.sub(r"^((public|private|protected)\s*:\s*)+", "", head)
    if re.match(r'(inline\s+)?namespace\b|extern\s*""$', head):
        return "scope"
    before_call = head.split("(")[0]
    if "(" not in head:
        return "scope" if re.search(r"\b(class|struct|union|enum)\b", head) else "braces"
    if re.search(r"(?<![=!<>])=(?!=)", before_call) and "operator" not in before_call:
        return "function" if re.search(r"\]\s*(\(.*\))?[^()]*$", head, re.S) else "braces"
    # A member's initializer: `: a_(b), c_{`. What may stand between `)` and a body is no name.
    last = re.search(r"(\w+)$", head)
    if re.search(r"\)\s*:[^:]", head) and last and last.group(1) not in ("const", "noexcept", "override", "final"):
        return "braces"
    return "function"


def _name(head):
    test = re.match(r"(TEST\w*|TYPED_TEST\w*)\s*\((.*)\)$", head, re.S)
    if test:
        return ".".join(re.findall(r"\w+", test.group(2)))
    names = re.findall(r"([\w:~]+)\s*\(", head)
    return names[0] if names else head.split("\n")[-1]


def python_functions(text):
    """Methods stand apart; functions inside functions count for those around them."""
    return [(node.name, node.end_lineno - node.lineno + 1) for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _is_code(path):
    return source_tree.is_cpp(path) or path.endswith((".py", ".proto", ".sh", ".cmake"))


def too_long(tree):
    """What is above the limits, as the lines of ratchets.txt: {'file PATH': lines, 'function PATH NAME': lines}."""
    found = {}
    for path, text in tree.items():
        if not _is_code(path):
            continue
        if text.count("\n") > _MAX_FILE_LINES:
            found[f"file {path}"] = text.count("\n")
        functions = cpp_functions(text) if source_tree.is_cpp(path) else python_functions(text) if path.endswith(".py") else []
        for name, lines in functions:
            if lines > _MAX_FUNCTION_LINES:
                found[f"function {path} {name}"] = lines
    return found


def listed(text):
    rows = [line.rsplit(" ", 1) for line in text.split("\n") if line and not line.startswith("#")]
    return {what: int(lines) for what, lines in rows}


def differences(found, allowed):
    result = [f"{what} has {lines} lines: make it shorter" for what, lines in found.items()
              if lines > allowed.get(what, 0)]
    return result + [f"{what} is shorter now ({found.get(what, 'gone')}): lower its number in tests/repo/ratchets.txt"
                     for what, lines in allowed.items() if found.get(what, 0) < lines]


def test_nothing_grows_beyond_the_limits():
    source_tree.assert_none(differences(too_long(source_tree.repository()), listed(_LIST.read_text())))


_BODY = "  int a = 0;\n" * 69
_LONG = {
    "free": f"namespace stemma {{\nint Free(int b) {{\n{_BODY}}}\n}}\n",
    "method": f"class A {{\n public:\n  void Method() const override {{\n{_BODY}  }}\n  int b_ = 0;\n}};\n",
    "constructor": f"A::A(int b) : b_(b), c_{{1}}, d_{{{{2}}}} {{\n{_BODY}}}\n",
    "test": f"TEST(A, SaysSomething) {{\n{_BODY}}}\n",
    "template": f"template <typename T>\nstd::vector<T> Make(const T& t) {{\n{_BODY}}}\n",
    "trailing": f"auto Make(int b) -> absl::StatusOr<int> {{\n{_BODY}}}\n",
    "lambda": f"const auto kMake = [](int b) {{\n{_BODY}}};\n",
    "operator": f"bool operator==(const A& a, const A& b) {{\n{_BODY}}}\n",
    "braces in strings": f'void Print() {{\n  Say("}}");  // }}\n  Say(R"(}})");\n{_BODY}}}\n',
}


def test_a_long_function_is_noticed_however_it_is_written():
    for name, text in _LONG.items():
        found = too_long({"common/a.cc": text})
        assert len(found) == 1 and max(found.values()) >= 71, (name, found)
        shorter = too_long({"common/a.cc": text.replace("  int a = 0;\n", "", 10)})
        assert not shorter, (name, shorter)
    assert too_long({"a/b.py": "def f():\n" + "    a = 1\n" * 70}) == {"function a/b.py f": 71}


def test_two_short_functions_are_not_one_long_one():
    half = "  int a = 0;\n" * 40
    text = f"struct A {{ std::string b = \"\"; }};\nvoid B() {{\n{half}}}\nvoid C(A a = {{}}) {{\n{half}}}\n"
    assert [name for name, _ in cpp_functions(text)] == ["B", "C"]
    table = "const std::map<int, A> kTable = {\n" + "  {1, {2}},\n" * 90 + "};\n"
    assert not too_long({"common/a.cc": table})


def test_a_long_file_is_noticed():
    assert too_long({"common/a.h": "\n" * 401}) == {"file common/a.h": 401}
    assert not too_long({"common/a.h": "\n" * 400, "tests/golden/a.json": "\n" * 900})


def test_the_list_may_only_shrink():
    assert not differences({"file a": 500}, {"file a": 500})
    assert differences({"file a": 501}, {"file a": 500}) and differences({"file b": 401}, {})
    assert differences({"file a": 450}, {"file a": 500}) and differences({}, {"file a": 500})
