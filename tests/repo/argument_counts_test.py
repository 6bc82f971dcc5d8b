"""No C++ function takes more than six arguments: those that belong together are a struct, whose fields are named where it is
filled."""

import re

import source_tree

_ARGUMENTS_MAX = 6
_CALLABLE = re.compile(r"([A-Za-z_~][\w:]*)\s*\(")
# `const at::Tensor& x`, `T (&sums)[V]`, `int`: a type, or a type and a name. An expression of a call is rarely both.
_DECLARES = re.compile(r"(bool|int|double|float|size_t|u?int\d+_t)|(const\s+)?[A-Za-z_][\w:]*(<.*>)?(\s+const)?"
                       r"(\s*[&*]+(\s*__restrict)?\s*\w*(\[\w*\])?|\s+\w+(\[\w*\])?|\s*\(&\w+\)\[\w+\])(\s*=.*)?", re.S)


def arguments(code, begin):
    """The texts between the commas of a list whose bracket ends at `begin`; (list, where it ends)."""
    texts, current, depth, angles, position = [], "", 1, 0, begin
    while position < len(code):
        char = code[position]
        depth += (char in "([{") - (char in ")]}")
        if depth == 0:
            break
        if char == "<":
            angles += 1
        elif char == ">" and code[position - 1] != "-":
            angles = max(0, angles - 1)
        if char == "," and depth == 1 and angles == 0:
            texts.append(current.strip())
            current = ""
        else:
            current += char
        position += 1
    return [*texts, current.strip()], position


def declared(text):
    """(line, name, number of arguments) of each function that is declared or defined with too many. One that overrides
    another has that one's, which may be a library's."""
    code = re.sub(r"(?m)^\s*#.*(\\\n.*)*$", lambda lines: "\n" * lines.group().count("\n"), source_tree.cpp_code(text))
    for match in _CALLABLE.finditer(code):
        taken, end = arguments(code, match.end())
        if re.match(r"\)[\w\s]*\boverride\b", code[end:]):
            continue
        if len(taken) > _ARGUMENTS_MAX and all(_DECLARES.fullmatch(one) for one in taken):
            yield code.count("\n", 0, match.start()) + 1, match.group(1), len(taken)


def too_many(tree):
    return [f"{path}:{line}: {name} takes {count} arguments, at most {_ARGUMENTS_MAX} are read at one look: make those a struct "
            "that belong together"
            for path, text in tree.items() if source_tree.is_cpp(path) for line, name, count in declared(text)]


def test_functions_have_few_arguments():
    source_tree.assert_none(too_many(source_tree.repository()))


def test_control_a_function_with_seven_is_found():
    names = [f"a{i}" for i in range(7)]
    for found in ("void Run(" + ", ".join(f"const at::Tensor& {n}" for n in names) + ");",
                  "T* Run(int64_t a, T* __restrict b, const std::map<int, bool>& c, v1::Plan d = {}, bool e, T f, float x[3]) {",
                  "Engine::Engine(Backend a, Weights b, Model c, const Shard& d, Parts&& e, int f, Fn<int(int, int)> g) : a_(a) {",
                  "virtual Output Run(const at::Tensor&, const at::Tensor&, bool, double scale, int* a, int* b, int* c) const;"):
        assert len(too_many({"x.cc": found})) == 1, found
    for fine in ("void Run(" + ", ".join(f"const at::Tensor& {n}" for n in names[:6]) + ");",
                 "void Run(const std::map<A, B>& a, std::function<void(int, int, int)> b, Pair<A, B, C, D> c);",
                 "void Run(int a, int b, int c, int d, int e, int f, int g) const noexcept override {",
                 "Run(a, b, c, d, e, f, g);", "Run(*a, &b, c.d(), e[0], 5, f(), g->h);"):
        assert not too_many({"x.cc": fine}), fine
