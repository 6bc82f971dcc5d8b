"""G14: the demo prints ten rows of steps, --all every one, and no speed that its pairs do not show."""

import importlib.util
import pathlib

import pytest

DEMO = pathlib.Path(__file__).resolve().parents[2] / "examples" / "demo.py"


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def step(number):
    return {"step": number, "loss": 0.5, "grad_norm": 1.0, "tokens_logical": 8, "tokens_computed": 4, "tokens_saved": 4}


def printed(demo, capsys, count, every):
    steps = [step(i) for i in range(1, count + 1)]
    demo.print_steps(steps, steps, every)
    lines = capsys.readouterr().out.splitlines()
    return [int(line.split()[0]) for line in lines[2:] if line.split()[0].isdigit() and "steps" not in line], lines[-1]


def test_g14_ten_rows_stand_for_all_steps(demo, capsys):
    for count in (112, 11, 1000):
        rows, last = printed(demo, capsys, count, every=False)
        assert len(rows) == len(set(rows)) == 10 and rows == sorted(rows)
        assert rows[0] == 1 and rows[-1] == count
        assert last == f"10 of {count} steps; --all prints every one"


def test_g14_all_and_few_steps_are_printed_whole(demo, capsys):
    assert printed(demo, capsys, 112, every=True)[0] == list(range(1, 113))
    for count in (1, 9, 10):
        assert printed(demo, capsys, count, every=False)[0] == list(range(1, count + 1))


def test_g14_a_run_that_lost_steps_is_not_printed_as_whole(demo):
    with pytest.raises(SystemExit):
        demo.print_steps([step(1), step(2)], [step(1)], every=False)


def test_g14_pairs_that_agree_are_a_result(demo):
    assert demo.compare_times([1.0, 1.1, 1.0], [2.6, 2.8, 2.7], 2.8) == (
        "reuse is 2.70 x as fast; the ratio of FLOPs is 2.80 (96% of it)", True)


def test_g14_pairs_that_differ_by_more_than_they_claim_are_none(demo):
    text, is_result = demo.compare_times([1.0, 0.5, 1.3], [2.1, 5.0, 2.6], 2.8)  # 2.1, 10 and 2 x
    assert not is_result and text.startswith("No result: the pairs say 2.00 to 10.00 x"), text
    assert "when it is idle" in text and "%" not in text


def test_g14_what_flops_do_not_explain_is_no_result(demo):
    text, is_result = demo.compare_times([1.0, 1.0, 1.0], [4.9, 4.97, 5.0], 2.8)  # 177 % of the ideal
    assert not is_result and "which FLOPs do not explain" in text and "%" not in text, text


def test_g14_pairs_that_agree_that_reuse_is_slower_are_a_result_too(demo):
    text, is_result = demo.compare_times([1.0, 1.01, 1.0], [0.8, 0.8, 0.81], 2.8)
    assert is_result and "0.80 x" in text
