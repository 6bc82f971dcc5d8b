"""report.json of gpu_check.sh as a page: the section "GPU" of docs/benchmarks.md, and what gpu_check.sh prints at its end.

    python3 tests/gpu/report_page.py FILE                 prints the page of a report
    python3 tests/gpu/report_page.py [--check]            writes the section from the newest of tests/gpu/reports, or checks it

A number that is not in the report is “not measured”; none is scaled or guessed. Needs nothing but Python 3.8.
"""

import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TITLE = "GPU"
NOT_MEASURED = "not measured"
SCHEMA = "stemma.gpu_report.v1"
SPLITS = [(10240, 2048), (8192, 4096), (6144, 6144), (2048, 10240)]
ROLLOUTS = [2, 4, 8, 16, 32, 128]
# A device's last cache holds less, and its memory moves as much in ten times the time of a launch. Kernels that move less have
# no bandwidth to speak of.
LARGE_BYTES = 100e6
PARTS = ["self_check", "tests", "rates", "dense", "reuse", "offload", "memory", "capacity", "qwen3", "kernels", "waves", "optimizer",
         "transformers"]


class Report:
    """What is read of a report; anything may be missing."""

    def __init__(self, content):
        if content and content.get("schema") != SCHEMA:
            raise SystemExit(f"this is no {SCHEMA}")
        self.parts = (content or {}).get("parts", {})
        self.taken = (content or {}).get("taken", {})

    def state(self, part):
        return self.parts.get(part, {}).get("state", NOT_MEASURED)

    def fact(self, part, name):
        return self.parts.get(part, {}).get("facts", {}).get(name)

    def rows(self, part, table):
        return self.parts.get(part, {}).get("tables", {}).get(table, [])


def number(value, digits=2):
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}"


def seconds(spread, digits=3):
    """median (least–most)"""
    if not spread:
        return NOT_MEASURED
    return f"{spread['median']:.{digits}f} ({spread['least']:.{digits}f}–{spread['most']:.{digits}f})"


def share(value):
    return NOT_MEASURED if value is None else f"{100 * value:.1f}%"


def gigabytes(value):
    return NOT_MEASURED if value is None else f"{value / 1e9:.2f}"


def at(row, *keys):
    for key in keys:
        if not isinstance(row, dict) or key not in row:
            return None
        row = row[key]
    return row


def cell(row, text):
    """The text, or why there is no number."""
    return f"{NOT_MEASURED}: {row['not_measured']}" if row and "not_measured" in row else text


def table(head, rows):
    if not rows:
        return []
    align = "|".join("---" if index == 0 else "---:" for index in range(len(head)))
    return ["| " + " | ".join(head) + " |", f"|{align}|", *("| " + " | ".join(row) + " |" for row in rows)]


class Bars:
    """What a number has to reach, each with its verdict; a bar without a number is not measured."""

    def __init__(self):
        self.lines = []

    def add(self, what, target, shown, value, reached):
        """`shown`: the value as text. A value of None is not measured."""
        if value is None:
            self.lines.append(f"* {NOT_MEASURED}: {what} ({target})")
        else:
            self.lines.append(f"* {'met' if reached else '**missed**'}: {what}: {shown} ({target})")


def about_lines(report):
    device = report.fact("self_check", "device") or {}
    name = device.get("name") or NOT_MEASURED
    hardware = report.taken.get("hardware")
    lines = ["In bf16, on models of Llama3-8B's and Qwen3-8B's shape, with as many layers as each table says.", "",
             f"Device: {name}{f' ({hardware})' if hardware else ''}; driver {device.get('driver') or NOT_MEASURED}, torch "
             f"{device.get('torch') or NOT_MEASURED}. "
             "Seconds are medians (least–most) of three runs, or of as many as begin within two seconds, after two warm-ups, by the "
             "device's clock; no optimizer, server or client is in them."]
    commits = {part: report.parts.get(part, {}).get("commit") for part in PARTS}
    others = [f"{part} at {commit}" for part, commit in commits.items() if commit and commit != report.taken.get("commit")]
    if others:
        lines += ["", "Measured at other commits: " + "; ".join(others) + "."]
    states = [f"{part} {report.state(part)}" for part in PARTS if report.state(part) != "done"]
    if states:
        lines += ["", "Parts that are not whole: " + "; ".join(states) + "."]
    return lines


def check_lines(report, bars):
    lines, off = [], [k for row in report.rows("self_check", "self_check") for k in row.get("kernels_off", [])]
    checked = report.rows("self_check", "self_check")
    if checked:
        names = sorted({f"{k['kernel']} ({k['reason']})" for k in off})
        lines.append("Self-check: " + ("all kernels are admitted." if not names else "refused: " + "; ".join(names) + "."))
    worst = max((row["seconds"] for row in checked if "seconds" in row), default=None)
    bars.add("the self-check", "at most 20 s", f"{number(worst, 1)} s", worst, worst is not None and worst <= 20)
    tests = report.rows("tests", "tests")
    ran = bool(tests) and all(row["passed"] > 0 for row in tests)  # a binary that skips everything shows nothing
    failed = [f["test"] for row in tests for f in row["failed"]] + [row["binary"] for row in tests if "not_measured" in row]
    if tests:
        lines.append(f"Device tests: {sum(row['passed'] for row in tests)} passed, "
                     f"{sum(len(row['skipped']) for row in tests)} skipped"
                     + (", failed: " + ", ".join(failed) if failed else ", none failed") + ".")
    bars.add("device tests: whole steps, memory policies, and the error of bf16",
             "all pass; the error is at most 1.2 times that of dense bf16, flat up to N = 128", f"{len(failed)} failed",
             True if failed or ran else None, not failed)
    return lines


def copy_rate(report):
    """Bytes read and written inside the device in a second."""
    return next((row["bytes_per_s"] for row in report.rows("rates", "copies") if "bytes_per_s" in row), None)


def rate_lines(report, _bars):
    products = [[row["product"], f"{row['rows']:,} × {row['in']:,} × {row['out']:,}", row["direction"],
                 cell(row, number(row.get("tflops"), 0))] for row in report.rows("rates", "products")]
    attention = [[row["strategy"], str(row["spans"]), f"{row['rows']:,}", f"{row['keys_of_prefix']:,}",
                  cell(row, number(at(row, "forward", "tflops"), 0)), cell(row, number(at(row, "backward", "tflops"), 0))]
                 for row in report.rows("rates", "attention")]
    copies = [[row["direction"], gigabytes(row["bytes"]),
               cell(row, gigabytes(row.get("bytes_per_s", row.get("bytes_per_s_each_way"))))]
              for row in report.rows("rates", "copies")]
    tables = [table(["product", "rows × in × out", "direction", "TFLOP/s"], products),
              table(["strategy", "spans", "rows each", "keys of a prefix", "forward TFLOP/s", "backward TFLOP/s"], attention),
              table(["copy", "GB", "GB/s, each way"], copies)]
    return [line for lines in tables if lines for line in ["", *lines]]


def dense_rows(report, part):
    return [[row["what"], row["size"], str(row["layers"]), cell(row, seconds(row.get("seconds"))),
             number(row.get("tflops"), 0), share(row.get("mfu")), number(row.get("tokens_per_s"), 0),
             gigabytes(row.get("peak_bytes"))] for row in report.rows(part, "dense")]


def dense_lines(report, bars):
    head = ["dense", "P/R/N", "layers", "s", "TFLOP/s", "MFU of 989", "tokens/s", "activations GB"]
    lines = table(head, dense_rows(report, "dense") + dense_rows(report, "qwen3"))
    heads = [[f"{row['rows']:,}", cell(row, seconds(row.get("seconds"))), number(row.get("tflops"), 0)]
             for row in report.rows("dense", "head")]
    if heads:
        lines += ["", *table(["the head alone, rows", "s", "TFLOP/s"], heads)]
    mfu = max((row["mfu"] for row in report.rows("dense", "dense") if "mfu" in row), default=None)
    bars.add("dense at 12,288 tokens, causal MFU of 989 TFLOP/s", "target 60%", share(mfu), mfu, mfu is not None and mfu >= 0.6)
    return lines


def reuse_row(row):
    return [f"{row['prompt']}/{row['response']}", str(row["rollouts"]), str(row["wave_suffixes"]), str(row["layers"]),
            cell(row, seconds(at(row, "dense", "seconds"))), seconds(at(row, "reuse", "seconds")), number(row.get("ratio")),
            number(row.get("ideal"), 3), number(row.get("ideal_7a"), 3), share(row.get("of_ideal")),
            number(at(row, "dense", "tflops"), 0), number(at(row, "reuse", "tflops"), 0)]


def reuse_lines(report, bars):
    measured = {(row["prompt"], row["response"], row["rollouts"]): row for row in report.rows("reuse", "reuse")}
    # A report of other shapes (a test's) shows those; else every cell of the sweep has its line.
    wanted = [(p, r, n) for p, r in SPLITS for n in ROLLOUTS]
    if measured and not set(measured) & set(wanted):
        wanted = sorted(measured)
    empty = [NOT_MEASURED] * 8
    rows = [reuse_row(measured[key]) if key in measured else [f"{key[0]}/{key[1]}", str(key[2]), "–", "–", *empty]
            for key in wanted]
    head = ["P/R", "N", "suffixes a wave", "layers", "dense s", "reuse s", "ratio", "ideal", "ideal, nothing pruned", "of ideal",
            "dense TFLOP/s", "reuse TFLOP/s"]
    for prompt, response in SPLITS:
        limit = 0.97 if prompt == 10240 else 0.95
        found = [row for key, row in measured.items() if key[:2] == (prompt, response) and "of_ideal" in row]
        least = min((row["of_ideal"] for row in found), default=None)
        bars.add(f"{prompt}/{response}: reuse / dense of the FLOP ideal, at its worst N", f"target {100 * limit:.0f}%", share(least),
                 least, least is not None and least >= limit)
    ratios = [row["ratio"] for row in measured.values() if "ratio" in row]
    least = min(ratios, default=None)
    bars.add("reuse / dense, at its worst split and N", "target 0.99", number(least), least, least is not None and least >= 0.99)
    above = [row for row in measured.values() if row.get("of_ideal", 0) > 1]
    lines = table(head, rows)
    if above:
        lines += ["", f"{len(above)} ratios are above their ideal: the dense side is slow there, which is to be found first."]
    extra = [reuse_row(row) for part in ("waves", "qwen3") for row in report.rows(part, "reuse")]
    if extra:
        lines += ["", "Suffixes per wave, and Qwen3-8B's shape:", "", *table(head, extra)]
    return lines


def phase_b(row):
    return row["phase_bytes"][1] if row and "phase_bytes" in row else None


def best_offload(found):
    """(way, what it saves of Phase B's bytes, how much slower it is), beside a tape that stays whole: of the offloaded ways that
    are at most 3% slower the one that saves most; where all are slower, the fastest."""
    kept = found.get("S0")
    if not phase_b(kept):
        return None, None, None
    ways = [(way, 1 - phase_b(row) / phase_b(kept), row["seconds"]["median"] / kept["seconds"]["median"] - 1)
            for way, row in found.items() if "offloaded" in way and phase_b(row) is not None]
    fast = [way for way in ways if way[2] <= 0.03]
    return max(fast, key=lambda way: way[1]) if fast else min(ways, key=lambda way: way[2], default=(None, None, None))


def phases_of(row, name):
    return ", ".join(gigabytes(b) for b in row.get(name, [])) or NOT_MEASURED


def farthest_from_plan(rows):
    """(measured over planned, way) of the phase that is farthest above what its plan says; (None, None) without numbers."""
    shares = [(measured / planned, row["way"]) for row in rows
              for measured, planned in zip(row.get("phase_bytes", []), row.get("planned_bytes", [])) if planned > 0]
    return max(shares, default=(None, None))


def policy_table(report, part):
    layers = report.fact(part, "layers")
    return table([f"prefix policy, {layers} layers", "s", "Phase A, B, C GB", "by plan GB", "host GB", "copied out GB", "waits, demand loads"],
                 [[row["way"], cell(row, seconds(row.get("seconds"))), phases_of(row, "phase_bytes"), phases_of(row, "planned_bytes"),
                   gigabytes(row.get("host_bytes")),
                   gigabytes(row.get("out_bytes")), f"{row.get('waits', NOT_MEASURED)}, {row.get('demand_loads', NOT_MEASURED)}"]
                  for row in report.rows(part, "policies")])


def memory_lines(report, bars):
    parts = [part for part in ("offload", "memory") if report.rows(part, "policies")]
    lines = [line for part in parts for line in [*policy_table(report, part), ""]]
    # What is there at every depth, logits above all, weighs less the more layers there are: the deeper stack is the one to go by.
    held = [best_offload({row["way"]: row for row in report.rows(part, "policies")}) for part in parts]
    way, saved, slower = next((best for best in held if best[0]), (None, None, None))
    bars.add("what offload takes off Phase B's activations", "target 75%", f"{share(saved)}, {way}", saved,
             saved is not None and saved >= 0.75)
    bars.add("and how much slower that is", "at most 3%", share(slower), slower, slower is not None and slower <= 0.03)
    rows = [row for part in parts for row in report.rows(part, "policies")]
    above, of_way = farthest_from_plan(rows)
    bars.add("a phase's bytes of those that its plan says, at most", "at most 103%", f"{share(above)}, {of_way}", above,
             above is not None and above <= 1.03)
    longest = [[row["way"], cell(row, f"{row.get('tokens', 0):,}" + (", all positions" if row.get("is_the_positions") else ""))]
               for row in report.rows("capacity", "capacity")]
    if longest:
        layers = report.fact("capacity", "layers")
        lines += [*table([f"longest prompt + response, N = 2, {layers} layers", "tokens"], longest), ""]
    updates = [[row["states"].lower(), number(row.get("parameters"), 0), cell(row, seconds(row.get("seconds")))]
               for row in report.rows("optimizer", "optimizer")]
    return lines + (table(["APPLY, states in memory of the", "parameters", "s"], updates) if updates else [])


def kernel_lines(report, bars):
    limit, rows = copy_rate(report), report.rows("kernels", "kernels")
    shares = {(row["kernel"], row["rows"]): row["bytes_per_s"] / limit for row in rows if "bytes_per_s" in row and limit}
    large = {(row["kernel"], row["rows"]) for row in rows if row.get("bytes", 0) >= LARGE_BYTES}
    lines = table(["kernel", "rows", "s", "GB", "GB/s", "of a copy's rate"],
                  [[row["kernel"], f"{row['rows']:,}", cell(row, seconds(row.get("seconds"), 6)), gigabytes(row.get("bytes")),
                    number(row["bytes_per_s"] / 1e9, 0) if "bytes_per_s" in row else NOT_MEASURED, share(shares.get((row["kernel"], row["rows"])))]
                   for row in rows])
    least = min(large & set(shares), key=shares.get, default=None)
    bars.add("the slowest fused kernel, of the rate of a copy inside the device", "target 80%",
             f"{share(shares.get(least))}, {least and least[0]}", least, least is not None and shares[least] >= 0.8)
    return lines


def transformers_lines(report, _bars):
    rows = report.rows("transformers", "transformers")
    lines = table(["what a user would run instead", "P/R/N", "layers", "s"],
                  [[row["what"], row["size"], str(row["layers"]), cell(row, seconds(row.get("seconds")))] for row in rows])
    return lines


SECTIONS = [("", check_lines), ("What the device gives", rate_lines), ("Dense", dense_lines), ("Reuse", reuse_lines),
            ("Memory", memory_lines), ("Kernels", kernel_lines), ("Against what one would run instead", transformers_lines)]


def lines_of(content):
    """The section's lines without its title."""
    report, bars, lines = Report(content), Bars(), []
    if not report.parts:
        lines += ["Nothing was measured on a GPU yet. `make gpu-bundle` packs what measures it; [gpu.md](gpu.md) says how to run it",
                  "and what comes out. Beside what has a target below, these are not measured: products, attention and copies of the",
                  "device; the longest groups that run; Qwen3-8B's shape; suffixes per wave; APPLY; transformers on the same group."]
    else:
        lines += about_lines(report)
    for title, make in SECTIONS:
        made = make(report, bars)
        if report.parts:
            body = made or [f"{NOT_MEASURED}."]
            lines += ["", *([f"### {title}", ""] if title else []), *(body[1:] if body[0] == "" else body)]
    return lines + ["", *bars.lines]


def device_of(content):
    return at(Report(content).fact("self_check", "device"), "name") or NOT_MEASURED


def newest_of_each_device(contents):
    """`contents`: reports, oldest first. The newest of each device, newest first."""
    newest = {}
    for content in contents:
        newest.pop(device_of(content), None)  # the place is the newest one's
        newest[device_of(content)] = content
    return list(newest.values())[::-1]


def kept_reports():
    folder = os.path.join(HERE, "reports")
    files = sorted(name for name in os.listdir(folder) if name.endswith(".json")) if os.path.isdir(folder) else []
    return newest_of_each_device(read(os.path.join(folder, name)) for name in files)


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def section(content):
    """The lines of one report. The first says how it is taken, as that of every section does."""
    commit = (content or {}).get("taken", {}).get("commit")
    taken = f"Taken by `make gpu-bundle` and its gpu_check.sh at commit {commit}." if commit else \
        "Taken by `make gpu-bundle` and its gpu_check.sh at commit –: on no machine yet."
    return [taken, "", *lines_of(content)]


def section_of_all(contents):
    """The lines of the page's section: each report under the name of its device but the first."""
    first, *others = contents or [None]
    lines = section(first)
    for content in others:
        lines += ["", f"### {device_of(content)}", ""]
        lines += [f"#{line}" if line.startswith("### ") else line for line in section(content)]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", nargs="?", help="prints the page of this report")
    parser.add_argument("--check", action="store_true", help="says whether docs/benchmarks.md is what the kept reports give")
    arguments = parser.parse_args()
    if arguments.report:
        print("\n".join([f"## {TITLE}", "", *section(read(arguments.report))]))
        return
    sys.path.insert(0, os.path.join(HERE, "..", "bench"))
    import page  # not in the bundle

    path = os.path.join(HERE, "..", "..", "docs", "benchmarks.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    have = page.split(text)
    titles = [title for title in have if title not in (TITLE, page.TARGETS)]
    new = page.replaced(text, {TITLE: section_of_all(kept_reports())}, [*titles, TITLE])
    if arguments.check:
        if new != text:
            raise SystemExit("docs/benchmarks.md, section GPU, is not what tests/gpu/report_page.py makes: run it")
    else:
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)


if __name__ == "__main__":
    main()
