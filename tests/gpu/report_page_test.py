"""The page of a report: what is not measured is called so, bars have verdicts, and docs/benchmarks.md has what the script makes."""

import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import report_page  # noqa: E402
import report_sections  # noqa: E402


def spread(value):
    return {"median": value, "least": value, "most": value, "runs": 3}


def reuse(prompt, response, rollouts, of_ideal, ratio=2.0):
    return {"prompt": prompt, "response": response, "rollouts": rollouts, "wave_suffixes": 4, "layers": 8, "ratio": ratio,
            "ideal": ratio / of_ideal, "ideal_7a": ratio / of_ideal, "of_ideal": of_ideal,
            "dense": {"seconds": spread(2.0), "tflops": 600.0}, "reuse": {"seconds": spread(1.0), "tflops": 590.0}}


def report(**parts):
    return {"schema": report_page.SCHEMA, "taken": {"commit": "abc"},
            "parts": {name: {"state": "done", "facts": {}, "tables": tables} for name, tables in parts.items()}}


def sweep(of_ideal=0.98, but=()):
    """Rows of all splits and numbers of rollouts; `but`: (prompt, response, N) that have none."""
    return [reuse(p, r, n, of_ideal) for p, r in report_sections.SPLITS for n in report_sections.ROLLOUTS if (p, r, n) not in but]


def page(content):
    return "\n".join(report_page.section(content))


def of_device(name, commit):
    content = report(self_check={})
    content["parts"]["self_check"]["facts"]["device"] = {"name": name}
    content["taken"]["commit"] = commit
    return content


def test_each_device_has_its_newest_report():
    kept = report_page.newest_of_each_device([of_device("A", "1"), of_device("B", "2"), of_device("A", "3")])
    assert [content["taken"]["commit"] for content in kept] == ["3", "2"]
    lines = report_page.section_of_all(kept)
    assert "at commit 3." in lines[0]
    second = lines.index("### B")
    assert "at commit 2." in lines[second + 2] and "#### Reuse" in lines[second:] and "### Reuse" in lines[:second]
    assert not any(line.startswith("### ") for line in lines[second + 1:])
    assert report_page.section_of_all([]) == report_page.section(None)


def test_without_a_report_every_bar_is_not_measured():
    lines = report_page.section(None)
    bars = [line for line in lines if line.startswith("* ")]
    assert len(bars) >= 11 and all(line.startswith("* not measured: ") for line in bars)
    assert not any(character.isdigit() for line in lines for character in line.split("|")[0] if line.startswith("|"))


def test_parts_of_other_builds_are_named():
    content = report(rates={}, dense={})
    content["parts"]["rates"]["commit"], content["parts"]["dense"]["commit"] = "abc", "def"
    assert "Measured at other commits: dense at def." in page(content)
    content["parts"]["dense"]["commit"] = "abc"
    assert "other commits" not in page(content)


def test_parts_of_other_devices_and_days_are_named():
    content = report(self_check={}, rates={}, dense={})
    content["taken"]["date"] = "2026-11-28"
    content["parts"]["self_check"].update(device="H100", date="2026-11-28")
    content["parts"]["rates"].update(device="H200", date="2026-11-27")
    text = page(content)
    assert "Device: H100" in text and "Measured on other devices: rates on H200." in text and "Measured on other days: rates on 2026-11-27." in text
    content["parts"]["rates"].update(device="H100", date="2026-11-28")
    assert "on other" not in page(content)


def test_a_report_without_its_build_is_not_called_unmeasured():
    content = report(rates={})
    assert "at commit abc." in page(content)
    del content["taken"]
    text = page(content)
    assert "at an unknown commit" in text and "no machine" not in text and "on no machine yet" in page(None)


def copies(rate=2.5e12):
    return {"copies": [{"direction": "inside", "bytes": 2e9, "bytes_per_s": rate, "seconds": spread(1e-3)}]}


def kernel(name, rate=2e12, size=2e8, **fields):
    return {"kernel": name, "rows": 64, "seconds": spread(1e-4), "bytes": size, "bytes_per_s": rate, **fields}


def kernels_but(*names):
    """Rows of all kernels but these."""
    return [kernel(name, 2.4e12) for name in report_sections.KERNELS if name not in names]


def test_a_kernel_that_moves_little_has_no_bandwidth_to_be_judged_by():
    kernels = [*kernels_but("loss"), kernel("loss", 1e11, 1e6), {**kernel("loss"), "rows": 1 << 22}]
    text = page(report(kernels={"kernels": kernels}, rates=copies()))
    assert "met: the slowest fused kernel, of the rate of a copy inside the device: 80.0%, loss" in text
    assert "| loss | 64 |" in text and "4.0%" in text


def test_a_kernel_that_is_off_is_named_and_is_none_of_the_fused_ones():
    text = page(report(kernels={"kernels": [*kernels_but("loss", "word_sum"), kernel("loss"), kernel("word_sum", 1e10, off=True)]}, rates=copies()))
    assert "* not measured whole: the slowest fused kernel, of the rate of a copy inside the device: 80.0%, loss, 14 of 15 measured (" in text
    assert "| word_sum (off: plain operations) |" in text


@pytest.mark.parametrize("missing", ["attention_merge", "attention_add_parts", "word_sum"])
def test_a_kernel_without_a_row_is_missed(missing):
    rows = [*kernels_but("loss", missing), kernel("loss")]
    text = page(report(kernels={"kernels": rows}, rates=copies()))
    bar = "the slowest fused kernel, of the rate of a copy inside the device"
    assert f"* not measured whole: {bar}: 80.0%, loss, 14 of 15 measured; without a row: {missing} (target 80%)" in text
    assert f"* met: {bar}: 80.0%, loss (target 80%)" in page(report(kernels={"kernels": [*rows, kernel(missing + ", by itself", 2.4e12)]}, rates=copies()))


def test_the_kernels_of_the_page_are_those_of_the_tables():
    root = os.path.join(HERE, "..", "..", "worker", "backend")
    with open(os.path.join(root, "kernels.h"), encoding="utf-8") as file:
        entries = set(re.findall(r"void \(\*(\w+)\)", file.read()))
    with open(os.path.join(root, "cuda", "attention", "attention_kernels.h"), encoding="utf-8") as file:
        entries |= {f"attention_{name}" for name in re.findall(r"void \(\*(\w+)\)", file.read())}
    products = {"add_weight_gradient", "logits", "logits_backward"}  # cuBLAS: the part `rates` measures them
    assert entries - products == set(report_sections.KERNELS) and products < entries


def test_an_update_has_its_bytes_and_their_share_of_a_copy():
    rows = [{"states": "DEVICE", "parameters": 10**9, "seconds": spread(0.02)}, {"states": "HOST", "parameters": 10**9, "seconds": spread(0.5)}]
    text = page(report(optimizer={"optimizer": rows}, rates=copies(4e12)))
    assert "| device | 1,000,000,000 | 0.020 (0.020–0.020) | 40.00 | 2,000 | 50.0% |" in text
    assert "| host | 1,000,000,000 | 0.500 (0.500–0.500) | – | – | – |" in text
    assert "| 40.00 | 2,000 | not measured |" in page(report(optimizer={"optimizer": rows}))


@pytest.mark.parametrize("what, other", [("commit", "def"), ("device", "H200")])
def test_a_share_of_another_parts_rate_says_so(what, other):
    content = report(kernels={"kernels": [*kernels_but("loss"), kernel("loss")]}, rates=copies())
    for part in content["parts"].values():
        part.update(commit="abc", device="H100")
    assert "of a copy's rate |" in page(content)
    content["parts"]["rates"][what] = other
    said = f"kernels of {what} {content['parts']['kernels'][what]}, rates of {other}"
    assert f"of a copy's rate ({said})" in page(content) and f"80.0%, loss; {said} (target 80%)" in page(content)


def test_every_cell_of_the_sweep_has_a_line():
    text = page(report(reuse={"reuse": [reuse(10240, 2048, 16, 0.98)]}))
    assert text.count("| 10240/2048 |") == 6 and text.count("| 6144/6144 |") == 6
    assert "| 10240/2048 | 16 | 4 | 8 | 2.000 (2.000–2.000) |" in text
    assert "| 6144/6144 | 16 | – | – | not measured |" in text


def test_both_parts_of_the_sweep_are_one_table():
    late = {"prompt": 10240, "response": 2048, "rollouts": 128, "wave_suffixes": 4, "layers": 8, "not_measured": "out of time"}
    content = report(reuse={"reuse": [reuse(10240, 2048, 16, 0.98), late]}, reuse_large={"reuse": [reuse(10240, 2048, 128, 0.97, ratio=4.0)]})
    text = page(content)
    assert "| 10240/2048 | 128 | 4 | 8 | 2.000 (2.000–2.000) | 1.000 (1.000–1.000) | 4.00 |" in text and text.count("| 10240/2048 |") == 6
    # A number of the first part, as older reports have it, is none the less one.
    content["parts"]["reuse_large"]["tables"]["reuse"] = [{**late, "rollouts": 16}]
    assert "| 10240/2048 | 16 | 4 | 8 | 2.000 (2.000–2.000) |" in page(content)


BAR = "10240/2048: reuse / dense of the FLOP ideal, at its worst N"


@pytest.mark.parametrize("of_ideal, verdict", [(0.98, "met"), (0.96, "**missed**")])
def test_a_bar_has_its_verdict(of_ideal, verdict):
    text = page(report(reuse={"reuse": [*sweep(0.99, but=[(10240, 2048, 16)]), reuse(10240, 2048, 16, of_ideal)]}))
    assert f"* {verdict}: {BAR}: {100 * of_ideal:.1f}% (target 97%)" in text
    assert "* met: 6144/6144" in text and "* met: reuse / dense, at its worst split and N: 2.00 (target 0.99)" in text


@pytest.mark.parametrize("of_ideal, verdict", [(0.98, "not measured whole"), (0.96, "**missed**")])
def test_a_bar_is_not_met_by_some_of_its_cells(of_ideal, verdict):
    text = page(report(reuse={"reuse": [reuse(10240, 2048, 16, of_ideal), reuse(10240, 2048, 2, 0.99)]}))
    assert f"* {verdict}: {BAR}: {100 * of_ideal:.1f}%, 2 of 6 measured (target 97%)" in text
    assert "* not measured: 6144/6144" in text
    assert "* not measured whole: reuse / dense, at its worst split and N: 2.00, 2 of 24 measured" in text


def test_neither_are_those_of_dense_and_of_kernels():
    dense = [{"what": "a", "size": "1/2/1", "layers": 8, "mfu": 0.61, "seconds": spread(1.0)}, {"what": "b", "size": "1/2/1", "layers": 8}]
    kernels = [*kernels_but("loss"), kernel("loss"), {"kernel": "loss, b", "rows": 1, "not_measured": "x"}]
    content = report(dense={"dense": dense}, kernels={"kernels": kernels}, rates=copies())
    text = page(content)
    assert "* not measured whole: dense at 12,288 tokens, causal MFU of 989 TFLOP/s, at its worst row: 61.0%, a, 1 of 2 measured (target 60%" in text
    assert "80.0%, loss, 15 of 16 measured (target 80%)" in text
    for rows in (content["parts"]["dense"]["tables"]["dense"], content["parts"]["kernels"]["tables"]["kernels"]):
        rows.pop()
    text = page(content)
    assert "* met: dense at" in text and "* met: the slowest fused kernel" in text
    # Rows that a part had no time to name are not known.
    content["parts"]["dense"]["state"] = content["parts"]["kernels"]["state"] = "running"
    text = page(content)
    assert "61.0%, a, 1 of 1 measured; dense running (target 60%" in text and "15 of 15 measured; kernels running (target 80%)" in text


def test_the_dense_target_is_held_against_the_worst_row_and_names_its_device():
    rows = [{"what": what, "size": "1/2/1", "layers": 8, "mfu": mfu, "seconds": spread(1.0)} for what, mfu in (("head on a part", 0.59), ("head on all", 0.61))]
    content = report(dense={"dense": rows})
    content["parts"]["dense"]["device"] = "NVIDIA H100"
    bar = "dense at 12,288 tokens, causal MFU of 989 TFLOP/s, at its worst row"
    assert f"* **missed**: {bar}: 59.0%, head on a part, on NVIDIA H100 (target 60% on one H200)" in page(content)
    rows[0]["mfu"] = 0.6
    assert f"* met: {bar}: 60.0%, head on a part, on NVIDIA H100 (target 60% on one H200)" in page(content)


def test_a_head_of_a_vocabulary_whose_rows_are_padded_is_named():
    rows = [{"rows": 12288, "vocabulary": vocabulary, "tflops": 620, "seconds": spread(1.0)} for vocabulary in (128256, 128257)]
    text = page(report(dense={"dense": [], "head": rows}))
    assert "| 12,288 | 1.000" in text and "| 12,288, a vocabulary of 128,257 | 1.000" in text


def test_a_ratio_above_its_ideal_is_pointed_at():
    assert "above their ideal" in page(report(reuse={"reuse": [reuse(10240, 2048, 16, 1.02)]}))
    assert "above their ideal" not in page(report(reuse={"reuse": [reuse(10240, 2048, 16, 0.99)]}))


def test_a_row_says_why_it_has_no_number():
    text = page(report(memory={"policies": [{"way": "S0", "not_measured": "out of memory"}]}))
    assert "| S0 | not measured: out of memory |" in text


def policy(way, seconds, phase_b, planned_b=100):
    return {"way": way, "seconds": spread(seconds), "phase_bytes": [1, phase_b, 1], "planned_bytes": [1, planned_b, 0], "host_bytes": 0, "out_bytes": 0,
            "waits": 0, "demand_loads": 0}


def test_offload_is_held_against_the_tape_that_stays():
    text = page(report(memory={"policies": [policy("S0", 1.0, 100), policy("S0, offloaded", 1.02, 24)]}))
    assert "* met: what offload takes off Phase B's activations: 76.0%, S0, offloaded" in text and "* met: and how much slower that is: 2.0%" in text
    text = page(report(memory={"policies": [policy("S0", 1.0, 100), policy("S0, offloaded", 1.05, 26)]}))
    assert "activations: 74.0%, S0, offloaded (target 75%)" in text and "* **missed**: and how much slower that is: 5.0%" in text
    # The stack of more layers is the one to go by, where it was measured.
    deep = {"policies": [policy("S0", 1.0, 100), policy("S2, offloaded", 1.01, 21)]}
    shallow = {"policies": [policy("S0", 1.0, 100), policy("S0, offloaded", 1.02, 34)]}
    assert "activations: 79.0%, S2, offloaded" in page(report(offload=deep, memory=shallow))
    assert "activations: 66.0%, S0, offloaded" in page(report(offload={"policies": [{"way": "S0", "not_measured": "out of time"}]}, memory=shallow))
    # One that saves more and is slower than is allowed does not count.
    rows = [policy("S0", 1.0, 100), policy("S1, offloaded", 1.01, 24), policy("S4, offloaded", 1.3, 10)]
    assert "activations: 76.0%, S1, offloaded" in page(report(memory={"policies": rows}))


def test_a_way_whose_suffixes_recompute_stands_beside_a_tape_that_stays_so():
    rows = [policy("S0", 1.0, 100), policy("S2, offloaded", 1.01, 34), policy("S2, offloaded, suffixes S1", 1.02, 21)]
    assert "activations: 66.0%, S2, offloaded (target 75%)" in page(report(offload={"policies": rows}))
    text = page(report(offload={"policies": [*rows, policy("S0, suffixes S1", 1.01, 80)]}))
    assert "* met: what offload takes off Phase B's activations: 79.0%, S2, offloaded, suffixes S1, beside S0 (the suffixes' recompute is part " \
           "of it, and by itself takes off 20.0% and is 1.0% slower) (target 75%)" in text
    assert "* met: and how much slower that is: 2.0% (at most 3%)" in text


def test_a_part_of_several_commits_says_so_beside_its_ratios():
    content = report(memory={"policies": [policy("S0", 1.0, 100), policy("S2, offloaded", 1.01, 20)]})
    content["parts"]["memory"]["commit"] = "abc, its S2 at def"
    text = page(content)
    assert "80.0%, S2, offloaded, of abc, its S2 at def (target 75%)" in text and "slower that is: 1.0%, of abc, its S2 at def" in text


def test_policies_of_other_layers_are_not_compared():
    rows = [{**policy("S0", 1.0, 100), "layers": 4}, {**policy("S0", 1.0, 200), "layers": 8}, {**policy("S2, offloaded", 1.01, 40), "layers": 8}]
    content = report(memory={"policies": rows})
    content["parts"]["memory"]["facts"]["layers"] = 8
    text = page(content)
    assert "activations: 80.0%, S2, offloaded" in text and text.count("| S0 |") == 1


def test_bytes_are_held_against_the_plan():
    def both(*rows):
        return page(report(offload={"policies": [policy("S0", 1.0, 90)]}, memory={"policies": list(rows)}))

    bar = "a phase's bytes of those that its plan says, at most"
    assert f"* met: {bar}: 102.0%, S0" in both(policy("S0", 1.0, 102), policy("S1", 1.0, 99))
    assert f"* **missed**: {bar}: 104.0%, S1 (at most 103%)" in both(policy("S0", 1.0, 100), policy("S1", 1.0, 104))
    text = both(policy("S0", 1.0, 102), {"way": "S1", "not_measured": "out of time"})
    assert f"* not measured whole: {bar}: 102.0%, S0, 2 of 3 measured (at most 103%)" in text
    text = page(report(memory={"policies": [policy("S0", 1.0, 102)]}))
    assert f"* not measured whole: {bar}: 102.0%, S0, 1 of 1 measured; offload not measured (at most 103%)" in text
    assert "* not measured: a phase's bytes" in page(report(memory={"policies": []}))


def test_a_search_that_was_cut_is_a_bound():
    rows = [{"way": "a", "tokens": 2048, "cut": True, "is_the_positions": False}, {"way": "b", "cut": True, "not_measured": "out of time"},
            {"way": "c", "tokens": 4096, "is_the_positions": True},
            {"way": "d", "tokens": 8192, "is_the_positions": False, "ended_by": "cuBLAS failed"}]
    text = page(report(capacity={"capacity": rows}))
    assert "| a | at least 2,048 (cut) |" in text and "| b | not measured: out of time |" in text and "| c | 4,096, all positions |" in text
    assert "| d | at least 8,192 (cuBLAS failed) |" in text


def test_kernels_are_held_against_the_copy_of_the_same_device():
    kernels = {"kernels": [{"kernel": "loss", "rows": 8, "seconds": spread(1e-5), "bytes": 10**9, "bytes_per_s": 2e12}]}
    copies = {"copies": [{"direction": "inside", "bytes": 10**9, "bytes_per_s": 4e12}]}
    assert "* **missed**: the slowest fused kernel, of the rate of a copy inside the device: 50.0%, loss" in page(report(kernels=kernels, rates=copies))
    assert "* not measured: the slowest fused kernel" in page(report(kernels=kernels))


def test_tests_that_failed_and_parts_that_were_cut_are_named():
    content = report(tests={"tests": [{"binary": "a", "passed": 3, "skipped": [], "failed": [{"test": "A.B", "why": "x"}]}]})
    content["parts"]["rates"] = {"state": "running"}
    text = page(content)
    assert "3 passed, 0 skipped, failed: A.B" in text and "* **missed**: device tests" in text and "rates running" in text


@pytest.mark.parametrize("passed, failed, verdict", [(3, [], "met"), (0, [], "not measured whole"),
                                                     (0, [{"test": "A.B", "why": "x"}], "**missed**")])
def test_tests_that_skip_themselves_show_nothing(passed, failed, verdict):
    rows = [{"binary": "a", "passed": 9, "skipped": [], "failed": []},
            {"binary": "b", "passed": passed, "skipped": ["B.C"], "failed": failed}]
    assert f"* {verdict}: device tests" in page(report(tests={"tests": rows}))


def binary(name, **fields):
    return {"binary": name, "passed": 3, "skipped": [], "failed": [], "exit_status": 0, **fields}


@pytest.mark.parametrize("second, state, verdict, said", [
    (binary("b"), "done", "met", "6 passed, 0 skipped, none failed."),
    (binary("b"), "running", "not measured whole", "6 passed"),
    (binary("b", passed=0, not_measured="out of time"), "out of time", "not measured whole", "none failed, out of time: b."),
    (binary("b", exit_status=139), "done", "**missed**", "failed: b (exit status 139)."),
    (binary("b", passed=0, exit_status=124, not_measured="it ended before its tests did"), "done", "**missed**", "failed: b (exit status 124)")])
def test_device_tests_are_met_when_all_ran_and_passed(second, state, verdict, said):
    content = report(tests={"tests": [binary("a"), second]})
    content["parts"]["tests"]["state"] = state
    text = page(content)
    assert f"* {verdict}: device tests" in text and said in text


def check_row(dtype, family, **fields):
    return {"dtype": dtype, "family": family, "seconds": 8.0, "kernels_off": [], **fields}


def test_kernels_are_admitted_where_they_were_checked():
    rows = [check_row(*pair) for pair in report_sections.CHECKED]
    text = page(report(self_check={"self_check": rows}))
    assert "Self-check: all kernels are admitted.\n" in text and "* met: the self-check: 8.0 s" in text
    rows[-1] = {"dtype": "fp32", "family": "qwen3", "not_measured": "out of time"}
    text = page(report(self_check={"self_check": rows}))
    assert "Self-check: all kernels are admitted where they were checked; not checked: fp32 of qwen3." in text
    assert "* not measured whole: the self-check: 8.0 s, 3 of 4 measured" in text
    assert "Self-check: not measured; not checked: bf16 of llama" in page(report(self_check={"self_check": [rows[-1]]}))
    off = [check_row("bf16", "llama", kernels_off=[{"kernel": "loss", "reason": "too far"}])]
    assert "Self-check: refused: loss (too far); not checked: bf16 of qwen3" in page(report(self_check={"self_check": off}))


def test_another_files_schema_is_refused():
    with pytest.raises(SystemExit):
        page({"schema": "another", "parts": {}})


def test_the_section_of_the_page_is_what_the_script_makes():
    subprocess.run([sys.executable, os.path.join(HERE, "report_page.py"), "--check"], check=True)


def test_spans_of_unequal_lengths_are_told_from_the_shortest_to_the_longest():
    rate = {"strategy": "attention", "spans": 6, "rows": 1920, "keys_of_prefix": 0, "forward": {"tflops": 400.0},
            "backward": {"tflops": 300.0}}
    text = page(report(rates={"attention": [rate, {**rate, "step": 64}]}))
    assert "| attention | 6 | 1,920 | 0 | 400 | 300 |" in text
    assert "| attention | 6 | 1,920 to 2,240 | 0 | 400 | 300 |" in text
