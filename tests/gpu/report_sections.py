"""The sections of report_page.py's page: tables of a report's parts, and the bars that they are held against."""

from report_data import NOT_MEASURED, Cells, at, cell, gigabytes, least, most, number, seconds, share, table

SPLITS = [(10240, 2048), (8192, 4096), (6144, 6144), (2048, 10240)]
ROLLOUTS = [2, 4, 8, 16, 32, 128]
# A device's last cache holds less, and its memory moves as much in ten times the time of a launch. Kernels that move less have
# no bandwidth to speak of.
LARGE_BYTES = 100e6
# AdamW reads a master, its gradient and both moments, and writes all but the gradient (28); the weight in bf16 is made of the master
# (6); weight and second moment are looked at (6). A clip that is not 1 would add 8.
BYTES_OF_APPLY = 40
PARTS = ["self_check", "tests", "rates", "dense", "reuse", "offload", "memory", "qwen3", "kernels", "transformers", "capacity", "waves",
         "optimizer", "reuse_large"]
# What the bench measures, by itself or under several rows (a name up to its comma): worker/backend/kernels.h and the two of
# worker/backend/cuda/attention/attention_kernels.h.
KERNELS = ["rms_norm_forward", "rms_norm_backward", "qkv_forward", "qkv_backward", "swiglu_forward", "swiglu_backward",
           "embedding_backward", "head_forward", "head_backward", "loss", "vector_norm", "first_nonfinite", "word_sum",
           "attention_merge", "attention_add_parts"]
CHECKED = [(dtype, family) for dtype in ("bf16", "fp32") for family in ("llama", "qwen3")]


def about_lines(report):
    device = report.fact("self_check", "device") or {}
    hardware = report.taken.get("hardware")
    lines = ["In bf16, on models of Llama3-8B's and Qwen3-8B's shape, with as many layers as each table says.", "",
             f"Device: {report.device()}{f' ({hardware})' if hardware else ''}; driver {device.get('driver') or NOT_MEASURED}, torch "
             f"{device.get('torch') or NOT_MEASURED}. "
             "Seconds are medians (least–most) of three runs, or of as many as begin within two seconds, after warm-ups, by the "
             "device's clock; no optimizer, server or client is in them."]
    own = {"device": report.device(), "commit": report.taken.get("commit"), "date": report.taken.get("date")}
    for what, title in (("device", "on other devices"), ("commit", "at other commits"), ("date", "on other days")):
        others = [f"{part} {'at' if what == 'commit' else 'on'} {report.origin(part)[what]}" for part in PARTS
                  if part in report.parts and report.origin(part)[what] not in (None, own[what])]
        if others:
            lines += ["", f"Measured {title}: " + "; ".join(others) + "."]
    states = [f"{part} {report.state(part)}" for part in PARTS if report.state(part) != "done"]
    if states:
        lines += ["", "Parts that are not whole: " + "; ".join(states) + "."]
    return lines


def self_check_lines(report, bars):
    rows = report.rows("self_check", "self_check")
    checked = [row for row in rows if "kernels_off" in row]
    names = sorted({f"{k['kernel']} ({k['reason']})" for row in checked for k in row["kernels_off"]})
    seen = [(row.get("dtype"), row.get("family")) for row in checked]
    missing = [f"{dtype} of {family}" for dtype, family in CHECKED if (dtype, family) not in seen]
    worst = max((row["seconds"] for row in rows if "seconds" in row), default=None)
    bars.add("the self-check", "at most 20 s", f"{number(worst, 1)} s", most(worst, 20), Cells(len(checked), len(CHECKED)))
    if not rows:
        return []
    said = "refused: " + "; ".join(names) if names else NOT_MEASURED if not checked else \
        "all kernels are admitted" + (" where they were checked" if missing else "")
    return [f"Self-check: {said}{'; not checked: ' + ', '.join(missing) if missing else ''}."]


def failures(row):
    """What failed of one test binary: its tests, or itself where it ended otherwise than they say."""
    failed = [f["test"] for f in row["failed"]]
    ended_badly = row.get("exit_status", 0) != 0 or row.get("not_measured", "out of time") != "out of time"
    return failed or ([f"{row['binary']} (exit status {row.get('exit_status')})"] if ended_badly else [])


def test_lines(report, bars):
    rows = report.rows("tests", "tests")
    failed = [name for row in rows for name in failures(row)]
    ran = [row for row in rows if row["passed"] > 0]  # a binary that skips everything shows nothing
    bars.add("device tests: whole steps, memory policies, and the error of bf16",
             "all pass; the error is at most 1.2 times that of dense bf16, flat up to N = 128", f"{len(failed)} failed",
             False if failed else True if ran else None, Cells.of_rows(report, [("tests", rows)], lambda row: row["passed"] > 0))
    if not rows:
        return []
    left = [row["binary"] for row in rows if row.get("not_measured") == "out of time"]
    return [f"Device tests: {sum(row['passed'] for row in rows)} passed, {sum(len(row['skipped']) for row in rows)} skipped"
            + (", failed: " + ", ".join(failed) if failed else ", none failed")
            + (", out of time: " + ", ".join(left) if left else "") + "."]


def check_lines(report, bars):
    return [*self_check_lines(report, bars), *test_lines(report, bars)]


def copy_rate(report):
    """Bytes read and written inside the device in a second."""
    return next((row["bytes_per_s"] for row in report.rows("rates", "copies") if "bytes_per_s" in row), None)


def rows_each(row):
    """How long an attention's spans are: all alike, or from the shortest to the longest."""
    last = row["rows"] + (row["spans"] - 1) * row.get("step", 0)
    return f"{row['rows']:,}" if last == row["rows"] else f"{row['rows']:,} to {last:,}"


def rate_lines(report, _bars):
    products = [[row["product"], f"{row['rows']:,} × {row['in']:,} × {row['out']:,}", row["direction"],
                 cell(row, number(row.get("tflops"), 0))] for row in report.rows("rates", "products")]
    attention = [[row["strategy"], str(row["spans"]), rows_each(row), f"{row['keys_of_prefix']:,}",
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


def of_device(report, part):
    device = report.origin(part)["device"]
    return "" if device == NOT_MEASURED else f", on {device}"


def head_text(row):
    odd = row.get("vocabulary", 0) % 8 != 0  # whose rows of logits are padded
    return f"{row['rows']:,}" + (f", a vocabulary of {row['vocabulary']:,}" if odd else "")


def dense_lines(report, bars):
    head = ["dense", "P/R/N", "layers", "s", "TFLOP/s", "MFU of 989", "tokens/s", "activations GB"]
    lines = table(head, dense_rows(report, "dense") + dense_rows(report, "qwen3"))
    heads = [[head_text(row), cell(row, seconds(row.get("seconds"))), number(row.get("tflops"), 0)]
             for row in report.rows("dense", "head")]
    if heads:
        lines += ["", *table(["the head alone, rows", "s", "TFLOP/s"], heads)]
    rows = report.rows("dense", "dense")
    # The target is one of an H200: the line says on which device it was, and where its head ran.
    mfu, what = min(((row["mfu"], row["what"]) for row in rows if "mfu" in row), default=(None, None))
    bars.add("dense at 12,288 tokens, causal MFU of 989 TFLOP/s, at its worst row", "target 60% on one H200",
             f"{share(mfu)}, {what}{of_device(report, 'dense')}", least(mfu, 0.6),
             Cells.of_rows(report, [("dense", rows)], lambda row: "mfu" in row))
    return lines


def reuse_row(row):
    return [f"{row['prompt']}/{row['response']}", str(row["rollouts"]), str(row["wave_suffixes"]), str(row["layers"]),
            cell(row, seconds(at(row, "dense", "seconds"))), seconds(at(row, "reuse", "seconds")), number(row.get("ratio")),
            number(row.get("ideal"), 3), number(row.get("ideal_7a"), 3), share(row.get("of_ideal")),
            number(at(row, "dense", "tflops"), 0), number(at(row, "reuse", "tflops"), 0)]


def reuse_bars(measured, bars):
    for prompt, response in SPLITS:
        limit = 0.97 if prompt == 10240 else 0.95
        found = [row["of_ideal"] for key, row in measured.items() if key[:2] == (prompt, response) and "of_ideal" in row]
        worst = min(found, default=None)
        bars.add(f"{prompt}/{response}: reuse / dense of the FLOP ideal, at its worst N", f"target {100 * limit:.0f}%", share(worst),
                 least(worst, limit), Cells(len(found), len(ROLLOUTS)))
    ratios = [row["ratio"] for row in measured.values() if "ratio" in row]
    worst = min(ratios, default=None)
    bars.add("reuse / dense, at its worst split and N", "target 0.99", number(worst), least(worst, 0.99),
             Cells(len(ratios), len(SPLITS) * len(ROLLOUTS)))


def sweep(report):
    """{(prompt, response, rollouts): row} of both parts of the sweep; one with a number, where any has it."""
    rows = {}
    for row in report.rows("reuse", "reuse") + report.rows("reuse_large", "reuse"):
        key = (row["prompt"], row["response"], row["rollouts"])
        if "ratio" in row or key not in rows:
            rows[key] = row
    return rows


def reuse_lines(report, bars):
    measured = sweep(report)
    # A report of other shapes (a test's) shows those; else every cell of the sweep has its line.
    wanted = [(p, r, n) for p, r in SPLITS for n in ROLLOUTS]
    if measured and not set(measured) & set(wanted):
        wanted = sorted(measured)
    empty = [NOT_MEASURED] * 8
    rows = [reuse_row(measured[key]) if key in measured else [f"{key[0]}/{key[1]}", str(key[2]), "–", "–", *empty]
            for key in wanted]
    head = ["P/R", "N", "suffixes a wave", "layers", "dense s", "reuse s", "ratio", "ideal", "ideal, nothing pruned", "of ideal",
            "dense TFLOP/s", "reuse TFLOP/s"]
    reuse_bars(measured, bars)
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


def suffix_policy(way):
    return way.partition("suffixes ")[2]


def best_offload(found):
    """(way, what it saves of Phase B's bytes, how much slower it is), beside a tape that stays whole: of the offloaded ways that
    are at most 3% slower the one that saves most; where all are slower, the fastest. A way whose suffixes recompute counts only
    beside a tape that stays with the same suffixes, so that what offload itself gives can be told."""
    kept = found.get("S0")
    if not phase_b(kept):
        return None, None, None
    ways = [(way, 1 - phase_b(row) / phase_b(kept), row["seconds"]["median"] / kept["seconds"]["median"] - 1)
            for way, row in found.items() if "offloaded" in way and phase_b(row) is not None
            and (not suffix_policy(way) or phase_b(found.get(resident_of(way))))]
    fast = [way for way in ways if way[2] <= 0.03]
    return max(fast, key=lambda way: way[1]) if fast else min(ways, key=lambda way: way[2], default=(None, None, None))


def resident_of(way):
    """The way whose tape stays, with the same suffixes."""
    return f"S0, suffixes {suffix_policy(way)}" if suffix_policy(way) else "S0"


def offload_words(way, found):
    """The way's name, and what of its gain and its time is not offload's."""
    if not way or not suffix_policy(way):
        return way
    kept, resident = found["S0"], found[resident_of(way)]
    slower = resident["seconds"]["median"] / kept["seconds"]["median"] - 1
    return f"{way}, beside S0 (the suffixes' recompute is part of it, and by itself takes off " \
           f"{share(1 - phase_b(resident) / phase_b(kept))} and is {share(slower)} slower)"


def offload_bars(report, bars, parts):
    # What is there at every depth, logits above all, weighs less the more layers there are: the deeper stack is the one to go by.
    for part in parts:
        found = {row["way"]: row for row in policies(report, part)}
        way, saved, slower = best_offload(found)
        if way:
            break
    else:
        part, found, way, saved, slower = None, {}, None, None, None
    mixed = f", {report.mixed(part)}" if part and report.mixed(part) else ""
    bars.add("what offload takes off Phase B's activations", "target 75%", f"{share(saved)}, {offload_words(way, found)}{mixed}",
             least(saved, 0.75))
    bars.add("and how much slower that is", "at most 3%", f"{share(slower)}{mixed}", most(slower, 0.03))


def phases_of(row, name):
    return ", ".join(gigabytes(b) for b in row.get(name, [])) or NOT_MEASURED


def farthest_from_plan(rows):
    """(measured over planned, way) of the phase that is farthest above what its plan says; (None, None) without numbers."""
    shares = [(measured / planned, row["way"]) for row in rows
              for measured, planned in zip(row.get("phase_bytes", []), row.get("planned_bytes", [])) if planned > 0]
    return max(shares, default=(None, None))


def policies(report, part):
    """The rows of the layers that the part had last."""
    layers = report.fact(part, "layers")
    return [row for row in report.rows(part, "policies") if row.get("layers", layers) == layers]


def policy_table(report, part):
    layers = report.fact(part, "layers")
    return table([f"prefix policy, {layers} layers", "s", "Phase A, B, C GB", "by plan GB", "host GB", "copied out GB", "waits, demand loads"],
                 [[row["way"], cell(row, seconds(row.get("seconds"))), phases_of(row, "phase_bytes"), phases_of(row, "planned_bytes"),
                   gigabytes(row.get("host_bytes")),
                   gigabytes(row.get("out_bytes")), f"{row.get('waits', NOT_MEASURED)}, {row.get('demand_loads', NOT_MEASURED)}"]
                  for row in policies(report, part)])


def tokens_text(row):
    """The longest that runs, or what is known of it."""
    if "tokens" not in row:
        return cell(row, NOT_MEASURED)
    text = f"{row['tokens']:,}" + (", all positions" if row.get("is_the_positions") else "")
    bound = "cut" if row.get("cut") else row.get("ended_by")
    return f"at least {text} ({bound})" if bound else text


def memory_lines(report, bars):
    parts = [part for part in ("offload", "memory") if report.rows(part, "policies")]
    lines = [line for part in parts for line in [*policy_table(report, part), ""]]
    offload_bars(report, bars, parts)
    tables = [(part, policies(report, part)) for part in ("offload", "memory")]
    above, of_way = farthest_from_plan([row for _, rows in tables for row in rows])
    bars.add("a phase's bytes of those that its plan says, at most", "at most 103%", f"{share(above)}, {of_way}", most(above, 1.03),
             Cells.of_rows(report, tables, lambda row: "phase_bytes" in row))
    layers = report.fact("capacity", "layers")
    longest = [[row["way"], tokens_text(row)] for row in report.rows("capacity", "capacity") if row.get("layers", layers) == layers]
    if longest:
        lines += [*table([f"longest prompt + response, N = 2, {layers} layers", "tokens"], longest), ""]
    return lines + update_lines(report)


def update_lines(report):
    """APPLY, and the rate at which its bytes are read and written where they all lie on the device."""
    limit, updates = copy_rate(report), []
    for row in report.rows("optimizer", "optimizer"):
        cells = ["–", "–", "–"]
        if row["states"] == "DEVICE" and "seconds" in row:
            count = row["parameters"] * BYTES_OF_APPLY
            rate = count / row["seconds"]["median"]
            cells = [gigabytes(count), number(rate / 1e9, 0), share(rate / limit) if limit else NOT_MEASURED]
        updates.append([row["states"].lower(), number(row.get("parameters"), 0), cell(row, seconds(row.get("seconds"))), *cells])
    apart = report.apart("optimizer", "rates") if limit and updates else ""
    return table(["APPLY, states in memory of the", "parameters", "s", f"GB, by {BYTES_OF_APPLY} B a parameter", "GB/s",
                  f"of a copy's rate{f' ({apart})' if apart else ''}"], updates)


def kernel_bar(report, bars, shares):
    """`shares`: [(row, of a copy's rate)]. What runs in the place of a kernel that is off is none."""
    large = [row for row in report.rows("kernels", "kernels") if row.get("bytes", LARGE_BYTES) >= LARGE_BYTES]
    found = [(rate, row["kernel"]) for row, rate in shares if row["bytes"] >= LARGE_BYTES and not row.get("off")]
    worst, name = min(found, default=(None, None))
    apart = report.apart("kernels", "rates")
    cells = Cells.of_rows(report, [("kernels", large)], lambda row: "bytes_per_s" in row and not row.get("off"))
    without = [kernel for kernel in KERNELS if kernel not in {row["kernel"].partition(",")[0] for row in large}]
    cells.known += len(without)
    if without:
        cells.cut.append("without a row: " + ", ".join(without))
    bars.add("the slowest fused kernel, of the rate of a copy inside the device", "target 80%",
             f"{share(worst)}, {name}{f'; {apart}' if apart else ''}", least(worst, 0.8), cells)


def kernel_lines(report, bars):
    limit, rows = copy_rate(report), report.rows("kernels", "kernels")
    shares = [(row, row["bytes_per_s"] / limit) for row in rows if "bytes_per_s" in row and limit]
    kernel_bar(report, bars, shares)
    apart = report.apart("kernels", "rates") if shares else ""
    of_row = {id(row): rate for row, rate in shares}
    return table(["kernel", "rows", "s", "GB", "GB/s", f"of a copy's rate{f' ({apart})' if apart else ''}"],
                 [[row["kernel"] + (" (off: plain operations)" if row.get("off") else ""), f"{row['rows']:,}",
                   cell(row, seconds(row.get("seconds"), 6)), gigabytes(row.get("bytes")),
                   number(row["bytes_per_s"] / 1e9, 0) if "bytes_per_s" in row else NOT_MEASURED, share(of_row.get(id(row)))]
                  for row in rows])


def transformers_lines(report, _bars):
    rows = report.rows("transformers", "transformers")
    lines = table(["what a user would run instead", "P/R/N", "layers", "s"],
                  [[row["what"], row["size"], str(row["layers"]), cell(row, seconds(row.get("seconds")))] for row in rows])
    return lines


SECTIONS = [("", check_lines), ("What the device gives", rate_lines), ("Dense", dense_lines), ("Reuse", reuse_lines),
            ("Memory", memory_lines), ("Kernels", kernel_lines), ("Against what one would run instead", transformers_lines)]
