"""The mutants as data: mutants/*.toml read into records, and what is wrong with a record beside a source tree.

A tree is a dict from path to text, as tests/repo/source_tree.py reads it, so that a control can bring a small one."""

import dataclasses
import pathlib
import re
import tomllib

FOLDER = pathlib.Path(__file__).resolve().parent / "mutants"
VERDICTS = ("equivalent", "open")
_FIELDS = {"name", "breaks", "file", "old", "new", "tests", "targets", "at", "of", "survives"}
_NEEDED = ("name", "breaks", "file", "old", "new", "tests")
_STAYS = "the source was changed: rewrite the mutant for it, or delete it where the code is gone"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One wrong change. `old` stands `of` times in `file`; the one with number `at` becomes `new`."""
    name: str
    breaks: str  # one line: what goes wrong
    file: str
    old: str
    new: str
    tests: tuple  # each must fail: a ctest name, then perhaps `::` and a gtest filter, a pytest or a unittest name
    targets: tuple = ()  # to build beside the tests that are binaries
    at: int = 1
    of: int = 1
    survives: str = ""  # "equivalent: reason" or "open: reason"; empty for one that dies
    table: str = ""  # the file that holds it

    def applied(self, text):
        """`text` with the mutation. The caller has checked that `old` stands there `of` times."""
        begin = -1
        for _ in range(self.at):
            begin = text.index(self.old, begin + 1)
        return text[:begin] + self.new + text[begin + len(self.old):]


def occurrences(text, part):
    """Counts places where `part` begins, overlapping ones too."""
    return sum(text.startswith(part, i) for i in range(len(text))) if len(part) < 2 else \
        len(re.findall(f"(?={re.escape(part)})", text))


def parse(text, table):
    """(mutants, problems) of one table file."""
    mutants, problems = [], []
    for number, entry in enumerate(tomllib.loads(text).get("mutant", []), 1):
        where = f"{table}: {entry.get('name', f'mutant {number}')}"
        missing = [field for field in _NEEDED if not entry.get(field) and not (field == "new" and "new" in entry)]
        unknown = sorted(entry.keys() - _FIELDS)
        problems += [f"{where}: `{field}` is missing" for field in missing]
        problems += [f"{where}: field `{field}` is unknown; known: {', '.join(sorted(_FIELDS))}" for field in unknown]
        if not missing and not unknown:
            lists = {field: tuple(entry.get(field, ())) for field in ("tests", "targets")}
            mutants.append(Mutant(**{**entry, **lists, "table": table}))
    return mutants, problems


def read():
    """(mutants, problems) of the whole table, in the order of its files."""
    mutants, problems = [], []
    for path in sorted(FOLDER.glob("*.toml")):
        more, wrong = parse(path.read_text(encoding="utf-8"), path.name)
        mutants += more
        problems += wrong
    names = [mutant.name for mutant in mutants]
    problems += [f"{name}: two mutants have this name" for name in sorted({n for n in names if names.count(n) > 1})]
    return mutants, problems


def place_problem(mutant, tree):
    """Why the mutant cannot be applied to `tree`, or an empty text."""
    where = f"{mutant.table}: {mutant.name}: "
    if mutant.file not in tree:
        return f"{where}no file {mutant.file}; {_STAYS}"
    found = occurrences(tree[mutant.file], mutant.old)
    if found != mutant.of:
        return f"{where}its old text stands {found} times in {mutant.file}, not {mutant.of}; {_STAYS}"
    if not 1 <= mutant.at <= mutant.of:
        return f"{where}`at` is {mutant.at}, must be from 1 to {mutant.of}"
    if mutant.old == mutant.new:
        return f"{where}changes nothing"
    return ""


def verdict_problem(mutant):
    """What is wrong with the listed verdict of a survivor, or an empty text."""
    if not mutant.survives:
        return ""
    verdict, _, reason = mutant.survives.partition(": ")
    if verdict in VERDICTS and len(reason.split()) >= 3:
        return ""
    return f"{mutant.table}: {mutant.name}: `survives` is \"equivalent: reason\" or \"open: reason\", with the reason in words"


def _entries(tree):
    """ctest name -> its sources' texts, by the CMakeLists.txt files under tests/."""
    found = {}
    for path, text in tree.items():
        if not (path.startswith("tests/") and path.endswith("CMakeLists.txt")):
            continue
        folder = path.rpartition("/")[0]
        for body in _written_out(re.sub(r"(?m)#.*$", "", text)):
            match = re.match(r"stemma_\w*test\(\s*([\w-]+)(.*)", body, re.S)
            if match:
                found[match[1]] = [tree.get(source) or tree.get(f"{folder}/{source}") or ""
                                   for source in re.findall(r"([\w./-]+\.(?:cc|py))\b", _rooted(match[2], folder))]
    return found


def _rooted(text, folder):
    """The words of a call with the names of the folder itself resolved."""
    return text.replace("${CMAKE_CURRENT_SOURCE_DIR}", folder).replace("${_here}", folder)


def _written_out(text):
    """The calls of a CMakeLists.txt, those inside foreach once for each item."""
    def expand(match):
        return "\n".join(match[3].replace(f"${{{match[1]}}}", item) for item in match[2].split())
    text = re.sub(r"foreach\((\w+)((?:\s+[\w.-]+)+)\s*\)(.*?)endforeach\(\)", expand, text, flags=re.S)
    return re.findall(r"stemma_\w*test\([^()]*(?:\([^()]*\)[^()]*)*\)", text)


def _stands(selector, sources):
    """Whether every part of a selector is a test of `sources`."""
    names = set()
    for source in sources:
        names.update(f"{suite}.{test}" for suite, test in
                     re.findall(r"^\s*TEST(?:_[FP])?\(\s*(\w+)\s*,\s*(\w+)\s*\)", source, re.M))
        names.update(re.findall(r"^\s*def (test_\w+)", source, re.M))
    for part in selector.split(":"):
        # An instantiated suite is Prefix/Suite, its tests Suite.Test/number.
        plain = re.sub(r"^[\w*]+/(?=[\w*]+\.)|/[\w*]+$", "", part)
        if "." in plain and plain not in names and plain.rpartition(".")[2] in names:
            continue  # unittest: Class.test_name
        pattern = re.compile(re.escape(plain).replace(r"\*", r"\w*"))
        if not any(pattern.fullmatch(name) for name in names):
            return False
    return True


def test_problems(mutants, tree):
    """Tests that the table names and that do not exist."""
    entries, problems = _entries(tree), []
    for mutant in mutants:
        for test in mutant.tests:
            name, _, selector = test.partition("::")
            where = f"{mutant.table}: {mutant.name}: "
            if name not in entries:
                problems.append(f"{where}no ctest entry {name}")
            elif selector and not _stands(selector, entries[name]):
                problems.append(f"{where}{name} has no test {selector}; name the one that kills it now")
    return problems
