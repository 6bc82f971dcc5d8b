"""gpu_bench and compare_transformers.py on the CPU with small shapes: every part ends, every row has its numbers or its reason, and
the report becomes a page."""

import json
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import report_page  # noqa: E402
import report_sections  # noqa: E402

BENCH = os.path.join(os.environ["STEMMA_BUILD_DIR"], "tests", "gpu_bench")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}


def bench(report, *arguments):
    return subprocess.run([BENCH, "--report", str(report), "--device", "cpu", "--tiny", *arguments], env=ENVIRONMENT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)


def parts_of(path):
    with open(path) as file:
        return json.load(file)["parts"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The report of all parts."""
    path = tmp_path_factory.mktemp("bench") / "report.json"
    ran = bench(path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    ran = subprocess.run([sys.executable, os.path.join(HERE, "compare_transformers.py"), "--report", str(path), "--device", "cpu",
                          "--tiny", "--layers", "2"], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert ran.returncode == 0, ran.stdout
    return path


def test_every_part_is_done_and_every_row_measured(whole):
    parts = parts_of(whole)
    assert set(parts) == set(report_page.PARTS) - {"tests"}
    for name, part in parts.items():
        assert part["state"] == "done", (name, part["state"])
        assert part["tables"], name
        assert part["device"] == "cpu" and len(part["date"]) == 10, name
        for rows in part["tables"].values():
            for row in rows:
                missing = row.get("not_measured")
                assert missing is None or "flash_attn" in missing, (name, row)


def test_every_kernel_of_the_page_has_a_row(whole):
    rows = parts_of(whole)["kernels"]["tables"]["kernels"]
    assert {row["kernel"].partition(",")[0] for row in rows} == set(report_sections.KERNELS)
    # A CPU has no split attention over a device's kernels: plain operations stand in their place.
    assert {row["kernel"] for row in rows if row.get("off")} == {"attention_merge", "attention_add_parts"}


def test_rows_that_were_not_asked_for_say_so(tmp_path):
    ran = bench(tmp_path / "report.json", "--only", "memory", "--layers", "1", "--rows", "S2, offloaded")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    part = parts_of(tmp_path / "report.json")["memory"]
    rows = {row["way"]: row.get("not_measured") for row in part["tables"]["policies"]}
    assert part["state"] == "not all rows were asked for" and len(rows) == 15
    assert {way for way, why in rows.items() if why is None} == {"S2, offloaded", "S2, offloaded, suffixes S1"}
    assert {why for why in rows.values() if why is not None} == {"not asked for"}


def test_a_second_run_keeps_what_the_first_measured(tmp_path):
    """First some rows are asked for, then others, then no time is left; another build begins anew."""
    path, about = tmp_path / "report.json", tmp_path / "about.json"
    about.write_text('{"commit": "abc"}')
    assert bench(path, "--about", str(about)).returncode == 0

    def run(*arguments):
        assert bench(path, "--only", "optimizer", *arguments).returncode == 0
        part = parts_of(path)["optimizer"]
        return part["state"], {row["states"]: row.get("not_measured") for row in part["tables"]["optimizer"]}

    assert run("--rows", "DEVICE") == ("not all rows were asked for", {"DEVICE": None, "HOST": "not asked for"})
    assert run("--rows", "HOST") == ("done", {"DEVICE": None, "HOST": None})
    assert run("--seconds", "0") == ("done", {"DEVICE": None, "HOST": None})
    about.write_text('{"commit": "def"}')
    assert bench(path, "--about", str(about)).returncode == 0
    assert run("--seconds", "0") == ("out of time", {"DEVICE": "out of time", "HOST": "out of time"})


def compare(path, *arguments, **environment):
    return subprocess.run([sys.executable, os.path.join(HERE, "compare_transformers.py"), "--report", str(path), *arguments],
                          env={**ENVIRONMENT, **environment}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def reported(path, **part):
    """A report with one row of transformers."""
    row = {"what": "transformers, sdpa, every trajectory in full", "size": "160/32/4", "layers": 2, "seconds": {"median": 1}}
    content = {"schema": report_page.SCHEMA, "taken": {"commit": "abc"},
               "parts": {"transformers": {"state": "done", "commit": "abc", "device": "cpu", "facts": {}, "tables": {"transformers": [row]}, **part}}}
    path.write_text(json.dumps(content))
    return row


def test_transformers_that_cannot_run_leaves_what_was_measured(tmp_path):
    path = tmp_path / "report.json"
    row = reported(path)
    for environment in ({"PYTHONPATH": str(tmp_path)}, {"CUDA_VISIBLE_DEVICES": ""}):
        if "PYTHONPATH" in environment:
            (tmp_path / "transformers.py").write_text("raise ImportError('none here')")
        ran = compare(path, "--tiny", **environment)
        assert ran.returncode == 0 and "stays" in ran.stdout, ran.stdout
        assert parts_of(path)["transformers"]["tables"]["transformers"] == [row]
    path.unlink()
    assert compare(path, "--tiny", PYTHONPATH=str(tmp_path)).returncode == 0
    assert parts_of(path)["transformers"]["state"] == "not measured: none here"


@pytest.mark.parametrize("commit, stays", [("abc", True), ("def", False)])
def test_transformers_begins_no_row_without_time(tmp_path, commit, stays):
    path = tmp_path / "report.json"
    row = reported(path, commit=commit)
    ran = compare(path, "--device", "cpu", "--tiny", "--layers", "2", "--seconds", "0")
    assert ran.returncode == 0, ran.stdout
    part = parts_of(path)["transformers"]
    rows = {other["what"]: other for other in part["tables"]["transformers"]}
    assert part["state"] == "out of time" and part["device"] == "cpu" and len(rows) == 3
    assert (rows[row["what"]] == row) == stays
    assert rows["transformers, sdpa, the prompt once, K/V cached"] == {
        "what": "transformers, sdpa, the prompt once, K/V cached", "size": "160/32/4", "layers": 2, "not_measured": "out of time"}


def test_transformers_memory_is_each_rows_own(monkeypatch):
    """The peak is taken anew before each row, where there is one."""
    import types

    import compare_transformers as script
    calls = []
    cuda = types.SimpleNamespace(reset_peak_memory_stats=lambda: calls.append("reset"), max_memory_allocated=lambda: calls.append("read") or 7,
                                 synchronize=lambda: None)
    torch = types.SimpleNamespace(cuda=cuda, OutOfMemoryError=MemoryError)
    trainer = types.SimpleNamespace(micro_batch=1, model=types.SimpleNamespace(zero_grad=lambda **_: None))
    rows = types.SimpleNamespace(add=calls.append)
    for name in ("a", "b"):
        script.measure(rows, torch, "cuda:0", trainer, {"what": name}, lambda: 0.5, lambda: 1)
    assert [call if isinstance(call, str) else call["peak_bytes"] for call in calls] == ["reset", "read", 7] * 2


def test_a_report_that_another_run_writes_is_left_alone(tmp_path):
    import fcntl
    path = tmp_path / "report.json"
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = bench(path, "--only", "rates", "--seconds", "0")
        assert ran.returncode == 1 and "another run writes" in ran.stderr
        ran = compare(path, "--device", "cpu", "--tiny")
        assert ran.returncode == 1 and "another run writes" in ran.stdout
    assert not path.exists() and bench(path, "--only", "rates", "--seconds", "0").returncode == 0


def test_rates_are_flops_by_seconds(whole):
    for row in parts_of(whole)["reuse"]["tables"]["reuse"]:
        for side in ("dense", "reuse"):
            assert row[side]["tflops"] == pytest.approx(row[side]["flops"] / row[side]["seconds"]["median"] / 1e12)
        assert row["ideal"] == pytest.approx(row["dense"]["flops"] / row["reuse"]["flops"])
        assert row["ratio"] == pytest.approx(row["dense"]["seconds"]["median"] / row["reuse"]["seconds"]["median"])
        # The phases are of one of the runs.
        spread, of_phases = row["reuse"]["seconds"], sum(row["phases"])
        assert spread["least"] * (1 - 1e-9) <= of_phases <= spread["most"] * (1 + 1e-9)


def test_offload_moves_the_tape_and_policies_shrink_it(whole):
    rows = {row["way"]: row for row in parts_of(whole)["memory"]["tables"]["policies"]}
    assert rows["S0"]["out_bytes"] == 0 and rows["S0, offloaded"]["out_bytes"] > 0
    assert rows["S0, offloaded"]["out_bytes"] == rows["S0, offloaded"]["in_bytes"]
    assert rows["S4"]["phase_bytes"][1] < rows["S2"]["phase_bytes"][1] < rows["S0"]["phase_bytes"][1]
    assert rows["S0, offloaded, every copy waited for"]["phase_bytes"][1] < rows["S0"]["phase_bytes"][1]


def test_offload_is_measured_of_a_deep_stack(whole):
    part = parts_of(whole)["offload"]
    rows = {row["way"]: row for row in part["tables"]["policies"]}
    assert list(rows) == ["S0", "S2, offloaded, suffixes S1", "S2, offloaded", "S0, suffixes S1"]
    kept, thin, full, thin_kept = (rows[way]["phase_bytes"][1] for way in rows)
    assert thin < full < thin_kept < kept and rows["S0"]["out_bytes"] == 0 and rows["S2, offloaded"]["out_bytes"] > 0


def test_bytes_are_what_the_plan_says(whole):
    """Phase B is compared alone: on CPUs products of bf16 take scratch that no plan counts, most of it in the others. With
    headroom a copy that ends early leaves less."""
    parts = parts_of(whole)
    for row in parts["memory"]["tables"]["policies"] + parts["offload"]["tables"]["policies"]:
        measured, planned = row["phase_bytes"][1], row["planned_bytes"][1]
        assert measured <= 1.03 * planned, row
        assert measured >= 0.97 * planned or row["out_bytes"] > 0, row


def test_transformers_computes_one_loss_in_both_ways(whole):
    rows = [row for row in parts_of(whole)["transformers"]["tables"]["transformers"] if "loss" in row]
    assert len(rows) == 2
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=2e-2)  # bf16, in another order
    assert rows[0]["loss"] > 0


@pytest.mark.parametrize("drop", [False, True])
def test_a_cached_prompt_gives_the_gradients_of_whole_trajectories(drop):
    """In fp32; the control drops what the responses give to the prompt's keys."""
    import torch
    import transformers

    import compare_transformers as compare
    model = compare.make_model(torch, transformers, compare.TINY, 2, "cpu", "sdpa").float()
    trainer = compare.Trainer(torch, model, compare.Group(torch, (40, 9, 5), compare.TINY["vocab_size"], "cpu"), micro_batch=2)
    gradients = []
    for run in (trainer.dense, trainer.cached_prompt):
        model.zero_grad(set_to_none=False)
        if drop and run == trainer.cached_prompt:
            backward = torch.autograd.backward
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch.autograd, "backward", lambda x, *a, **k: isinstance(x, list) or backward(x, *a, **k))
                run()
        else:
            run()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    worst = max(((gradients[1][n] - g).abs().max() / g.abs().max()).item() for n, g in gradients[0].items() if g.abs().max() > 0)
    assert (worst > 0.1) if drop else (worst < 1e-4), worst


def test_the_report_becomes_a_page(whole):
    ran = subprocess.run([sys.executable, os.path.join(HERE, "report_page.py"), str(whole)], text=True, stdout=subprocess.PIPE, check=True)
    for text in ("## GPU", "### Reuse", "| 160/32 | 4 |", "rms_norm_forward", "attention", "longest prompt"):
        assert text in ran.stdout, text
    assert "None" not in ran.stdout and "Traceback" not in ran.stdout


def test_without_time_no_row_begins_and_the_report_says_so(tmp_path):
    path = tmp_path / "report.json"
    assert bench(path, "--seconds", "0", "--only", "rates,capacity").returncode == 0
    for part in parts_of(path).values():
        assert part["state"] == "out of time"
        assert all(row["not_measured"] == "out of time" for rows in part["tables"].values() for row in rows)


def test_mistakes_are_clear_errors(tmp_path):
    ran = bench(tmp_path / "report.json", "--only", "rate")
    assert ran.returncode == 1 and "--only rate: no such part" in ran.stderr
    (tmp_path / "other.json").write_text("{}")
    ran = bench(tmp_path / "other.json", "--only", "rates")
    assert ran.returncode == 1 and "move it away" in ran.stderr
    ran = bench("/proc/self/report.json", "--only", "rates")
    assert ran.returncode == 1 and "/proc/self/report.json cannot be written" in ran.stderr
