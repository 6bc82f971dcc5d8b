"""G14: the demo prints ten rows of steps, --all every one."""

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
