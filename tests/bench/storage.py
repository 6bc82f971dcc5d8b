"""The storage part of `make bench`: what taking requests in, journal, spool and checkpoints cost beside the same work without
them, and how long a restart takes."""

import contextlib
import json
import os
import pathlib
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests")]

import dp_bench  # noqa: E402
import page  # noqa: E402
import stemma  # noqa: E402

TITLE = "Storage"
OF_A_STEP = 0.02     # journal and spool, of a step of the demo's large group: at most
OF_LOOPBACK = 0.5    # of the rate of a plain gRPC service, taking a request in: at least
RESTART_S = 2.0      # to the first accepted request, beyond a start of the same model with nothing to read: at most
JOURNAL_ROWS = 10_000
DEMO_GROUP = dp_bench.Case("1024/64/16", ((1024, 64, 16),))
TINY_MODEL = ROOT / "tests" / "golden" / "llama_vanilla" / "model"
TINY_STEPS = 8  # of a request


def subjects(command):
    """{subject: what the program measured}"""
    output = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    return {line["subject"]: line for line in map(json.loads, output.splitlines())}


def tiny_groups():
    rng = random.Random(1)
    return [stemma.Group("g", [rng.randrange(48) for _ in range(4)],
                         [stemma.Rollout([rng.randrange(48) for _ in range(3)], advantage=a) for a in (-1.0, 1.0)])]


def first_answer_s(binary, data):
    """Seconds from the start of the processes to the end of a first tiny update."""
    begin = time.monotonic()
    with stemma.LocalServer(TINY_MODEL, binary=binary, data=data, threads=1) as server, stemma.Client(server.address) as client:
        client.update_actor(tiny_groups(), loss=stemma.grpo(), adam=stemma.adamw(1e-6), old="on_policy")
        return time.monotonic() - begin


def rows_of(data):
    """How many rows the journal has of a server that has ended."""
    with contextlib.closing(sqlite3.connect(data / "journal" / "journal.db")) as database:
        return database.execute("SELECT COUNT(*) FROM rows").fetchone()[0]


def fill_journal(binary, data, rows):
    """Makes a data directory whose journal has at least so many rows, by steps of a tiny model."""
    while not (data / "journal").exists() or rows_of(data) < rows:
        missing = rows - (rows_of(data) if (data / "journal").exists() else 0)
        with stemma.LocalServer(TINY_MODEL, binary=binary, data=data, threads=1) as server, stemma.Client(server.address) as client:
            for _ in range(missing // (2 * TINY_STEPS) + 1):  # a decision and an end are a row each
                client.update_actor(tiny_groups(), loss=stemma.grpo(), adam=stemma.adamw(1e-6), old="policy", epochs=TINY_STEPS)


def measure_restart(binary, folder, rounds, rows):
    """{"rows": n, "empty": [s], "full": [s]}"""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else folder  # filling it is not measured
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        fill_journal(binary, pathlib.Path(scratch) / "data", rows)
        shutil.copytree(pathlib.Path(scratch) / "data", folder / "full")
    result = {"rows": rows_of(folder / "full"), "empty": [], "full": []}
    for turn in range(rounds):
        result["empty"].append(first_answer_s(binary, folder / f"empty-{turn}"))
        result["full"].append(first_answer_s(binary, folder / "full"))
    return result


def measure_step(binary, directory, folder, rounds):
    """Seconds of steps of the demo's large group by a server that keeps what it is asked."""
    groups = dp_bench.groups_of(DEMO_GROUP)
    with stemma.LocalServer(directory, binary=binary, data=folder / "step", durability="replay") as server, \
            stemma.Client(server.address) as client:
        return [dp_bench.step_s(dp_bench.update(client, groups)) for _ in range(rounds + 1)][1:]


def measure_ingest(programs, binary, directory, folder, rounds, mebibytes):
    with stemma.LocalServer(directory, binary=binary, data=folder / "ingest") as server:
        return subjects([os.path.join(programs, "ingest_bench"), "--server", server.address, "--rounds", str(rounds),
                         "--mebibytes", str(mebibytes), "--vocab", str(dp_bench.shapes.SPEC.vocab)])["ingest"]


def measure(build, directory, quick):
    programs, rounds = os.path.join(build, "tests"), 2 if quick else 5
    binary = pathlib.Path(build) / "bin" / "stemma"
    # Not in /tmp, which is memory on many machines.
    with tempfile.TemporaryDirectory(prefix="bench-", dir=build) as scratch:
        folder = pathlib.Path(scratch)
        for name in ("store", "checkpoint"):
            (folder / name).mkdir()
        result = subjects([os.path.join(programs, "store_bench"), "--directory", str(folder / "store"), "--rounds", str(rounds),
                           *(["--rows", "50", "--mebibytes", "32"] if quick else [])])
        result |= subjects([os.path.join(programs, "checkpoint_bench"), "--model", directory, "--directory",
                            str(folder / "checkpoint"), "--rounds", str(rounds)])
        result["ingest"] = measure_ingest(programs, binary, directory, folder, rounds, 32 if quick else 256)
        result["step_s"] = measure_step(binary, directory, folder, rounds)
        result["first_answer"] = measure_restart(binary, folder, rounds, 500 if quick else JOURNAL_ROWS)
    return result


def share_of_step(measured):
    """What a request of one step of one group waits for the disk: it is kept, then four rows, of which one settles."""
    rows = measured["append"]
    kept = measured["spool_group"]["write_s"][0] + 3 * rows["first_append_s"][0] + rows["settling_s"][0]
    return kept / statistics.median(measured["step_s"])


def ingest_rate(measured):
    return measured["ingest"]["plain_s"][0] / measured["ingest"]["server_s"][0]


def beyond_load(measured):
    """Seconds of each pair of starts."""
    answers = measured["first_answer"]
    return [full - empty for full, empty in zip(answers["full"], answers["empty"])]


def verdicts(measured):
    """[(text, met)]"""
    share, rows = share_of_step(measured), measured["first_answer"]["rows"]
    result = [(f"journal and spool are {share:.1%} of a step of {DEMO_GROUP.name} (target {OF_A_STEP:.0%})", share <= OF_A_STEP)]
    rate = ingest_rate(measured)
    result.append((f"requests are taken in at {rate:.0%} of the rate of a plain gRPC service (target {OF_LOOPBACK:.0%})",
                   rate >= OF_LOOPBACK))
    if rows >= JOURNAL_ROWS:
        later = statistics.median(beyond_load(measured))
        result.append((f"with a journal of {rows:,} rows the first request is answered {later:.2f} s later than with none (target "
                       f"{RESTART_S:.0f} s)", later <= RESTART_S))
    return result


def _quartiles(times, unit=1e3):
    middle, low, high = (value * unit for value in times)
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def row_table(append):
    yield f"| a row of {append['row_bytes']} bytes | ms | of a plain write and fsync |"
    yield "|---|---:|---:|"
    for name, key in (("a write of 4 KiB and an fsync", "plain_s"), ("after a settled row", "first_append_s"),
                      ("the next", "append_s"), ("settled: the write-ahead log is emptied", "settling_s")):
        yield f"| {name} | {_quartiles(append[key])} | {append[key][0] / append['plain_s'][0]:.2f} |"


def bytes_table(measured):
    yield "| what | MiB | ms | MB/s | of a plain write and fsync |"
    yield "|---|---:|---:|---:|---:|"
    for subject, names in (
            ("spool", {"plain_s": "a write and an fsync", "sha256_s": "SHA-256", "write_s": "a request is kept",
                       "read_s": "and read back"}),
            ("spool_group", {"plain_s": "a write and an fsync", "write_s": "a group is kept"}),
            ("checkpoint", {"plain_s": "a write and an fsync", "memcpy_s": "memcpy into new memory",
                            "stage_s": "staging, which the next step waits for", "write_s": "writing the staged files",
                            "commit_s": "reading back, manifest, rename", "verify_s": "verification"})):
        line = measured[subject]
        for key, name in names.items():
            seconds = line[key]
            yield (f"| {name} | {line['bytes'] / 2**20:.1f} | {_quartiles(seconds)} | {line['bytes'] / seconds[0] / 1e6:,.0f} | "
                   f"{line['plain_s'][0] / seconds[0]:.2f} × as fast |")


def ingest_table(ingest):
    yield "| a request over the loopback, from its first message to its answer | MiB | ms | MB/s |"
    yield "|---|---:|---:|---:|"
    for name, key in (("a plain gRPC service parses it", "plain_s"), ("the server reads, checks and digests it", "server_s")):
        yield (f"| {name} | {ingest['bytes'] / 2**20:.1f} | {_quartiles(ingest[key])} | "
               f"{ingest['bytes'] / ingest[key][0] / 1e6:,.0f} |")


def section(build, directory, quick):
    yield from lines(measure(build, directory, quick))


def lines(measured):
    answers = measured["first_answer"]
    yield "Medians and quartiles; what is compared ran in turns, on the disk of the build folder."
    yield ""
    yield from row_table(measured["append"])
    yield ""
    yield from bytes_table(measured)
    yield ""
    yield f"| a start with a journal of {answers['rows']:,} rows, to the answer to a first update of a tiny model | s |"
    yield "|---|---:|"
    for name in ("empty", "full"):
        yield f"| {'nothing to read' if name == 'empty' else 'the journal, and the checkpoint of its end'} | " \
              f"{statistics.median(answers[name]):.2f} ({min(answers[name]):.2f}–{max(answers[name]):.2f}) |"
    opened = measured["restart"]
    yield f"| of it, opening {opened['rows']:,} rows and checking their chain | {_quartiles(opened['open_s'], 1)} |"
    yield ""
    yield from ingest_table(measured["ingest"])
    yield ""
    yield f"A step of {DEMO_GROUP.name}: {statistics.median(measured['step_s']):.2f} s."
    yield ""
    yield from page.verdict_lines(verdicts(measured))
