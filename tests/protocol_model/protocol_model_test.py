"""The step protocol, searched exhaustively by spin (protocol.pml): every run within the bounds keeps every property and
ends; and each control, the same model with one mistake, is found, by a run that is printed."""

import pathlib
import re
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
MEMORY_MIB = 3000

# (CRASHES, OTHERS): all of the one with few of the other.
BOUNDS = ((3, 1), (2, 2))
ALL_OTHERS = (1, 4)

# The mistake, and the property that a shortest run breaks.
CONTROLS = {
    "NO_DEDUP": "APPLIED_TWICE",
    "APPLY_BEFORE_COMMIT": "CLIENT_TOLD_THE_TRUTH",
    "MUTATE_IN_PREPARE": "CLIENT_TOLD_THE_TRUTH",
    "NO_REPLAY": "SERVED_WEIGHTS_ARE_THE_LINEAGES",
    "NO_FENCING": "SERVED_WEIGHTS_ARE_THE_LINEAGES",
    "EPOCH_IS_NOT_KEPT": "SERVED_WEIGHTS_ARE_THE_LINEAGES",
    "REPLAY_CLIPS_ANEW": "ONE_ORDER",
    "DECIDED_IS_ABORTED": "CLIENT_TOLD_THE_TRUTH",
    "CANCEL_FORGETS_THE_DECISION": "CLIENT_TOLD_THE_TRUTH",
    "CANCEL_STOPS_HALFWAY": "ONE_ORDER",
    "ONE_VOTE_IS_ENOUGH": "NO_VOTE_IS_NEVER_APPLIED",
    "ONE_APPLIED_IS_ENOUGH": "SERVED_WEIGHTS_ARE_THE_LINEAGES",
}

# Lines that no run of the model comes to, beside those that report a violation: no rank has to refuse what a server without a
# mistake asks. Two controls come to them.
UNREACHED = (
    ":: kind == REFUSED -> phase = GIVING_UP",
    ":: kind == PREPARE && m_work == last_work[r] -> answer = REFUSED; m_value = 0",
    ":: kind == APPLY && !(vote[r] != NONE && m_work == last_work[r]) -> answer = REFUSED; m_value = 0",
)


def flat(path):
    """The model in one file, so that a line has one number."""
    return re.sub(r'(?m)^#include "(\S+)"\n', lambda found: flat(path.parent / found.group(1)), path.read_text())


def run(command, folder, allowed=(0,)):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in allowed, f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def make(folder, macros, options=("-O2", "-DSAFETY"), spin=()):
    """Compiles the search."""
    (folder / "model.pml").write_text(flat(HERE / "protocol.pml"))
    said = run(["spin", "-a", *spin, *[f"-D{macro}" for macro in macros], "model.pml"], folder)
    assert "rror" not in said, said
    # Every step is one of the whole state: there is nothing that a partial order could leave out.
    run(["gcc", "-w", "-DNOREDUCE", f"-DMEMLIM={MEMORY_MIB}", *options, "-o", "pan", "pan.c"], folder)


def search(folder, *options):
    """(states, what was found). The search was complete, unless it found something."""
    said = run(["./pan", "-m20000", "-w24", *options], folder)
    errors = int(re.search(r"errors: (\d+)", said).group(1))
    cut = "max search depth too small" in said or "out of memory" in said or "reached -DMEMLIM" in said
    assert not cut and (errors or "Search not completed" not in said), said
    return int(re.search(r"(\d+) states, stored", said).group(1)), errors, said


def trail(folder, macros):
    said = run(["spin", "-t", *[f"-D{macro}" for macro in macros], "model.pml"], folder, allowed=(0, 1))
    told = re.compile(r"\s*((server|rank \d|client|network): |VIOLATED )")
    return [line.strip() for line in said.split("\n") if told.match(line)]


def bounds(crashes, others):
    return [f"CRASHES={crashes}", f"OTHERS={others}"]


def checked(found, folder, macros):
    states, errors, said = found
    assert not errors, "\n".join([said, *trail(folder, macros)])
    print(f"{', '.join(macros)}: {states} states, {re.search(r'elapsed time (.*)', said).group(1)}")
    return said


@pytest.mark.parametrize("crashes, others", BOUNDS)
def test_every_run_keeps_every_property(tmp_path, crashes, others):
    macros = bounds(crashes, others)
    make(tmp_path, macros)
    checked(search(tmp_path), tmp_path, macros)


def test_every_run_ends(tmp_path):
    """No state comes again: with the absence of states that are stuck, every request ends whoever is slow."""
    macros = bounds(2, 1)
    make(tmp_path, macros, options=("-O2", "-DNP"))
    checked(search(tmp_path, "-l"), tmp_path, macros)


def test_a_run_without_end_is_found(tmp_path):
    # No rank refuses what a server without a mistake asks.
    macros = [*bounds(1, 1), "REFUSED_IS_ASKED_AGAIN", "CANCEL_STOPS_HALFWAY"]
    make(tmp_path, macros, options=("-O0", "-DNP"))
    said = search(tmp_path, "-l", "-A")[2]  # whatever properties it breaks before
    assert "non-progress cycle (" in said, said


def test_a_run_that_is_stuck_is_found(tmp_path):
    macros = [*bounds(1, 0), "LOSS_IS_NOT_NOTICED"]
    make(tmp_path, macros, options=("-O0", "-DSAFETY", "-DBFS"))
    said = search(tmp_path)[2]
    assert "invalid end state (" in said, said


def lines_of(text, pattern):
    """{(process, state): line}"""
    found, process = {}, ""
    for row in text.split("\n"):
        if head := re.match(r"(?:unreached in )?(?:proctype (\w+)|(init)\b)", row):
            process = head.group(1) or head.group(2)
        elif match := re.search(pattern, row):
            number = int(match.group("line"))
            found[process, int(match.group("state"))] = number
    return found


def test_every_line_is_reached(tmp_path):
    """Nor does a run break a property, where all of the others meet."""
    macros = bounds(*ALL_OTHERS)
    make(tmp_path, macros, spin=("-o3",))
    steps = lines_of(run(["./pan", "-d"], tmp_path), r"state\s+(?P<state>\d+) -\(tr .*?model\.pml:(?P<line>\d+) =>")
    said = checked(search(tmp_path), tmp_path, macros)
    unreached = lines_of(said[said.index("unreached in"):], r"model\.pml:(?P<line>\d+), state (?P<state>\d+),")
    reached = {line for step, line in steps.items() if step not in unreached}
    text = (tmp_path / "model.pml").read_text().split("\n")
    dead = [text[line - 1].strip() for line in sorted(set(steps.values()) - reached)]
    dead = [line for line in dead if "VIOLATED" not in line]
    assert len(reached) > 100 and dead == list(UNREACHED), dead


@pytest.mark.parametrize("mistake", CONTROLS)
def test_a_mistake_is_found(tmp_path, mistake):
    """Breadth first, so the run that is printed is a shortest one."""
    macros = [*bounds(1, 1), mistake]
    make(tmp_path, macros, options=("-O0", "-DSAFETY", "-DBFS"))
    states, errors, said = search(tmp_path)
    assert errors >= 1, said
    story = trail(tmp_path, macros)
    print(f"{mistake}, found after {states} states:", *story, sep="\n  ")
    assert story[-1] == f"VIOLATED {CONTROLS[mistake]}", "\n".join(story)
