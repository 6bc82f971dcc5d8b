"""The page of a report: what is not measured is called so, bars have verdicts, and docs/benchmarks.md has what the script makes."""

import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import report_page  # noqa: E402


def spread(value):
    return {"median": value, "least": value, "most": value, "runs": 3}


def reuse(prompt, response, rollouts, of_ideal, ratio=2.0):
    return {"prompt": prompt, "response": response, "rollouts": rollouts, "wave_suffixes": 4, "layers": 8, "ratio": ratio,
            "ideal": ratio / of_ideal, "ideal_7a": ratio / of_ideal, "of_ideal": of_ideal,
            "dense": {"seconds": spread(2.0), "tflops": 600.0}, "reuse": {"seconds": spread(1.0), "tflops": 590.0}}


def report(**parts):
    return {"schema": report_page.SCHEMA, "taken": {"commit": "abc"},
            "parts": {name: {"state": "done", "facts": {}, "tables": tables} for name, tables in parts.items()}}


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


def test_a_kernel_that_moves_little_has_no_bandwidth_to_be_judged_by():
    kernels = [{"kernel": "loss", "rows": 64, "seconds": spread(1e-5), "bytes": 1e6, "bytes_per_s": 1e11},
               {"kernel": "loss", "rows": 1 << 22, "seconds": spread(1e-4), "bytes": 2e8, "bytes_per_s": 2e12}]
    rates = {"copies": [{"direction": "inside", "bytes": 2e9, "bytes_per_s": 2.5e12, "seconds": spread(1e-3)}]}
    text = page(report(kernels={"kernels": kernels}, rates=rates))
    assert "met: the slowest fused kernel, of the rate of a copy inside the device: 80.0%, loss" in text
    assert "| loss | 64 |" in text and "4.0%" in text


def test_every_cell_of_the_sweep_has_a_line():
    text = page(report(reuse={"reuse": [reuse(10240, 2048, 16, 0.98)]}))
    assert text.count("| 10240/2048 |") == 6 and text.count("| 6144/6144 |") == 6
    assert "| 10240/2048 | 16 | 4 | 8 | 2.000 (2.000–2.000) |" in text
    assert "| 6144/6144 | 16 | – | – | not measured |" in text


@pytest.mark.parametrize("of_ideal, verdict", [(0.98, "met"), (0.96, "**missed**")])
def test_a_bar_has_its_verdict(of_ideal, verdict):
    text = page(report(reuse={"reuse": [reuse(10240, 2048, 16, of_ideal), reuse(10240, 2048, 2, 0.99)]}))
    assert f"* {verdict}: 10240/2048: reuse / dense of the FLOP ideal, at its worst N: {100 * of_ideal:.1f}% (target 97%)" in text
    assert "* not measured: 6144/6144" in text


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


def test_bytes_are_held_against_the_plan():
    text = page(report(memory={"policies": [policy("S0", 1.0, 102), policy("S1", 1.0, 99)]}))
    assert "* met: a phase's bytes of those that its plan says, at most: 102.0%, S0" in text
    text = page(report(memory={"policies": [policy("S0", 1.0, 100), policy("S1", 1.0, 104)]}))
    assert "* **missed**: a phase's bytes of those that its plan says, at most: 104.0%, S1 (at most 103%)" in text
    assert "* not measured: a phase's bytes" in page(report(memory={"policies": []}))


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


@pytest.mark.parametrize("passed, failed, verdict", [(3, [], "met"), (0, [], "not measured"),
                                                     (0, [{"test": "A.B", "why": "x"}], "**missed**")])
def test_tests_that_skip_themselves_show_nothing(passed, failed, verdict):
    rows = [{"binary": "a", "passed": 9, "skipped": [], "failed": []},
            {"binary": "b", "passed": passed, "skipped": ["B.C"], "failed": failed}]
    assert f"* {verdict}: device tests" in page(report(tests={"tests": rows}))


def test_another_files_schema_is_refused():
    with pytest.raises(SystemExit):
        page({"schema": "another", "parts": {}})


def test_the_section_of_the_page_is_what_the_script_makes():
    subprocess.run([sys.executable, os.path.join(HERE, "report_page.py"), "--check"], check=True)
