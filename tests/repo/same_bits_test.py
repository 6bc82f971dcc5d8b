"""The instrument itself: what it must see, what it must not, and one case through real processes."""

import dataclasses
import os
import pathlib

import numpy as np
import pytest

from repo import same_bits, same_bits_cases

BUILD = pathlib.Path(os.environ["STEMMA_BUILD_DIR"])
CASE = next(case for case in same_bits_cases.cases() if case.name.endswith("memory suffix s0"))


def outcome(**changes):
    numbers = {"plan/0/seconds/suffix": 0.25, "steps/0/metrics/actor/loss": 0.5, "steps/0/metrics/time/suffix_s": 0.1,
               "steps/0/metrics/measured/suffix_bytes": 1024, "steps/0/lineage": "a-1"}
    return same_bits.Outcome({"w": np.arange(4, dtype=np.float64), "b": np.zeros(2)}, {**numbers, **changes})


def test_equal_outcomes_are_the_same():
    assert same_bits.judged("case", outcome(), outcome(), offload=False)[0]


def test_times_and_ids_may_differ():
    other = outcome(**{"steps/0/metrics/time/suffix_s": 0.2, "steps/0/lineage": "b-1"})
    assert same_bits.judged("case", outcome(), other, offload=False)[0]


@pytest.mark.parametrize("path, value", [("steps/0/metrics/actor/loss", np.nextafter(0.5, 1).item()),
                                         ("plan/0/seconds/suffix", 0.26),  # predicted before anything was measured
                                         ("steps/0/metrics/measured/suffix_bytes", 1088),
                                         ("steps/0/metrics/actor/new", 0.0)])
def test_a_number_that_differs_is_named(path, value):
    good, text = same_bits.judged("case", outcome(), outcome(**{path: value}), offload=False)
    assert not good and path in text
    assert same_bits.judged("case", outcome(), outcome(**{path: value}), offload=False, ignored=[path])[0]


def test_a_number_that_is_gone_is_named():
    less = outcome()
    del less.numbers["steps/0/metrics/actor/loss"]
    assert "actor/loss" in same_bits.judged("case", outcome(), less, offload=False)[1]


def test_measured_bytes_may_differ_with_offload_only():
    other = outcome(**{"steps/0/metrics/measured/suffix_bytes": 2048})
    assert same_bits.judged("case", outcome(), other, offload=True)[0]
    assert not same_bits.judged("case", outcome(), other, offload=False)[0]


@pytest.mark.parametrize("bit", [0, 51, 63])
def test_one_flipped_bit_of_a_weight_is_seen(bit):
    other = outcome()
    other.weights["w"].view(np.uint64)[1] ^= np.uint64(1) << np.uint64(bit)
    good, text = same_bits.judged("case", outcome(), other, offload=False)
    assert not good and "1 of 2 tensors differ" in text


def test_a_minus_before_a_zero_a_missing_tensor_and_another_shape_are_seen():
    for change in (lambda w: w.update(b=-w["b"]), lambda w: w.pop("b"), lambda w: w.update(b=np.zeros((2, 1)))):
        other = outcome()
        change(other.weights)
        assert not same_bits.judged("case", outcome(), other, offload=False)[0]


def test_outcomes_without_a_step_are_no_proof():
    nothing = same_bits.Outcome({}, {})
    with pytest.raises(RuntimeError, match="nothing was trained"):
        same_bits.judged("case", nothing, nothing, offload=False)


def test_cases_cover_what_the_instrument_promises():
    cases = same_bits_cases.cases()
    assert len({case.name for case in cases}) == len(cases)
    values = {(key, value) for case in cases for key, value in case.config}
    for key, wanted in {"dtype": ("fp64", "fp32", "bf16"), "schedule": ("reuse", "dense", "auto"), "offload": ("on",),
                        "prefix_policy": ("s0", "s1", "s2", "s3", "s4", "s5"), "suffix_policy": ("s0", "s1", "s2", "s3", "s4"),
                        "layout": ("one_by_one", "padded", "packed"), "optimizer_residency": ("host",)}.items():
        assert {(key, value) for value in wanted} <= values
    losses = [request["header"]["loss"] for request in same_bits_cases.TRACES["losses"]()]
    assert {loss["loss_mode"] for loss in losses} == set(same_bits_cases.MODES)
    assert {loss["loss_agg_mode"] for loss in losses} == set(same_bits_cases.AGGREGATIONS)
    based = {(case.model, dict(case.config)["dtype"]) for case in cases if case.trace == "losses"}
    assert len(based) == 9, "every family in every dtype"


class OtherWaves(same_bits.Build):
    """The same program, told to add the same numbers in another order."""

    def run(self, case, *rest):
        config = tuple({**dict(case.config), "wave_suffixes": 2}.items())
        return super().run(dataclasses.replace(case, config=config), *rest)


def test_a_build_is_the_same_as_itself_and_another_order_of_sums_is_not(tmp_path):
    inputs = same_bits.Inputs(same_bits.Build(BUILD), tmp_path)
    good, text = same_bits.compare(CASE, [same_bits.Build(BUILD), same_bits.Build(BUILD)], inputs, tmp_path / "a", ())
    assert good, text
    good, text = same_bits.compare(CASE, [same_bits.Build(BUILD), OtherWaves(BUILD)], inputs, tmp_path / "b", ())
    assert not good and "tensors differ by" in text
