"""Groups become the bytes that the wire asks for."""

import array
import base64
import math
import struct
import sys

import numpy
import pytest
import stemma
from stemma import _arrays, _proto, config, groups


def encode(group_list, **options):
    return groups.parts("update", _proto.UpdateHeader(), group_list, **options)


def group_of(rollout, **fields):
    return encode([stemma.Group("g0", [1, 2, 3], [rollout], **fields)])[1].group


def test_tokens_are_little_endian_int32():
    group = group_of(stemma.Rollout([258, 7]))
    assert group.prompt_tokens == struct.pack("<3i", 1, 2, 3)
    assert group.rollouts[0].response_tokens == struct.pack("<2i", 258, 7)


@pytest.mark.parametrize("make", [list, numpy.array])
def test_the_largest_token_id_is_that_of_int32(make):
    assert _arrays.pack_int32(make([0, 2**31 - 1])) == struct.pack("<2i", 0, 2**31 - 1)
    with pytest.raises(ValueError, match="^has 2147483648 at 1: token ids are not negative and fit int32$"):
        _arrays.pack_int32(make([0, 2**31]))


def test_numbers_are_little_endian_float32():
    rollout = group_of(stemma.Rollout([8, 9], old_log_probs=[-1.25, -0.5])).rollouts[0]
    assert rollout.old_log_probs == struct.pack("<2f", -1.25, -0.5)


def test_a_stat_group_is_sent_where_there_is_one():
    assert group_of(stemma.Rollout([8]), stat_group="s").stat_group == "s"
    assert not group_of(stemma.Rollout([8])).HasField("stat_group")


def test_masks_are_bits_least_significant_first():
    mask = [1, 0, 0, 0, 0, 0, 0, 1, 0, 1]
    rollout = group_of(stemma.Rollout(list(range(10)), mask=mask)).rollouts[0]
    assert rollout.response_mask == bytes([0b10000001, 0b00000010])
    assert _arrays.unpack_bits(rollout.response_mask, 10) == mask
    assert rollout.response_mask != bytes([0b10000001, 0b01000000])  # most significant first would be this


@pytest.mark.parametrize("make", [list, tuple, lambda x: numpy.array(x), lambda x: numpy.array(x, dtype=numpy.int64),
                                  lambda x: array.array("i", x), iter])
def test_lists_arrays_and_iterators_give_the_same_bytes(make):
    group = encode([stemma.Group("g0", make([1, 2, 3]), [stemma.Rollout(make([8, 9]))])])[1].group
    assert group.prompt_tokens == struct.pack("<3i", 1, 2, 3)
    assert group.rollouts[0].response_tokens == struct.pack("<2i", 8, 9)


def test_a_string_in_a_dict_is_base64_of_the_wire_bytes():
    text = base64.b64encode(struct.pack("<2i", 8, 9)).decode()
    group = encode([{"uid": "g0", "prompt_tokens": text, "rollouts": [{"response_tokens": text, "response_mask": "Ag=="}]}])
    assert group[1].group.prompt_tokens == struct.pack("<2i", 8, 9) and group[1].group.rollouts[0].response_mask == b"\x02"


def test_masks_of_bools_and_numpy_are_taken():
    for mask in ([True, False, True], numpy.array([1, 0, 1]), numpy.array([True, False, True])):
        assert group_of(stemma.Rollout([1, 2, 3], mask=mask)).rollouts[0].response_mask == bytes([0b101])


def test_one_advantage_is_a_number_and_an_array_is_per_token():
    one = group_of(stemma.Rollout([8, 9], advantage=numpy.float32(0.5))).rollouts[0]
    assert one.WhichOneof("advantages") == "advantage" and one.advantage == 0.5
    each = group_of(stemma.Rollout([8, 9], advantage=numpy.array([0.5, 1.5]))).rollouts[0]
    assert each.WhichOneof("advantages") == "token_advantages"
    assert each.token_advantages == struct.pack("<2f", 0.5, 1.5)


def test_a_zero_reward_is_present_and_an_absent_one_is_not():
    assert group_of(stemma.Rollout([8], reward=0.0)).rollouts[0].HasField("reward")
    assert not group_of(stemma.Rollout([8])).rollouts[0].HasField("reward")


def test_rollouts_get_ids_from_their_group():
    parts = encode([stemma.Group("q", [1], [stemma.Rollout([2]), stemma.Rollout([3], rollout_id="mine")])])
    assert [r.rollout_id for r in parts[1].group.rollouts] == ["q/0", "mine"]


def test_rollouts_of_a_group_count_up_in_their_ids():
    group = encode([stemma.Group("g", [1], [stemma.Rollout([2]) for _ in range(3)])])[1].group
    assert [rollout.rollout_id for rollout in group.rollouts] == ["g/0", "g/1", "g/2"]


def test_dicts_in_the_traces_names_are_groups_too():
    line = {"uid": "g0", "prompt_tokens": [5, 6, 7], "rollouts": [
        {"rollout_id": "g0/0", "response_tokens": [8, 9], "response_mask": [1, 1], "old_log_probs": [-1.2, -0.3],
         "ref_log_prob": [-1.1, -0.4], "advantage": 0.5}]}
    same = stemma.Group("g0", [5, 6, 7], [stemma.Rollout([8, 9], mask=[1, 1], old_log_probs=[-1.2, -0.3],
                                                         ref_log_prob=[-1.1, -0.4], advantage=0.5)])
    assert encode([line])[1] == encode([same])[1]


@pytest.mark.parametrize("rollout, field", [
    (stemma.Rollout([1.5]), "groups[0].rollouts[0].tokens"),
    (stemma.Rollout(numpy.array([1.5])), "groups[0].rollouts[0].tokens"),
    (stemma.Rollout([2**31]), "groups[0].rollouts[0].tokens"),
    (stemma.Rollout(numpy.array([2**31])), "groups[0].rollouts[0].tokens"),
    (stemma.Rollout([[1, 2]]), "groups[0].rollouts[0].tokens"),
    (stemma.Rollout([1, 2], mask=[1]), "groups[0].rollouts[0].mask"),
    (stemma.Rollout([1], mask=[2]), "groups[0].rollouts[0].mask"),
    (stemma.Rollout([1], old_log_probs=["x"]), "groups[0].rollouts[0].old_log_probs"),
    (stemma.Rollout([1, 2], advantage=["x", "y"]), "groups[0].rollouts[0].advantage"),
    ({"response_tokens": [1.5]}, "groups[0].rollouts[0].response_tokens"),
    ({"response_tokens": [1, 2], "response_mask": [1]}, "groups[0].rollouts[0].response_mask"),
    ({"response_tokens": [1], "colour": 3}, "groups[0].rollouts[0].colour"),
    ({}, "groups[0].rollouts[0] lacks response_tokens"),
])
def test_what_cannot_be_sent_is_named_by_its_path(rollout, field):
    with pytest.raises(ValueError) as error:
        encode([stemma.Group("g0", [1], [rollout])])
    assert field in str(error.value)


def test_a_large_group_continues_in_further_messages():
    rollouts = [stemma.Rollout(list(range(100)), rollout_id=f"r{i}") for i in range(50)]
    group_list = [stemma.Group("big", [1, 2], rollouts), stemma.Group("small", [3], rollouts[:1])]
    parts = encode(group_list, message_bytes_max=2000)
    assert all(part.ByteSize() <= 2000 + 16 for part in parts)  # + the tag and length of the part itself
    kinds = [part.WhichOneof("part") for part in parts]
    assert kinds[0] == "update" and kinds[1] == "group" and "more" in kinds and kinds[-2:] == ["group", "end"]
    sent = list(parts[1].group.rollouts) + [r for p in parts if p.HasField("more") for r in p.more.rollouts]
    assert [r.rollout_id for r in sent] == [f"r{i}" for i in range(50)]
    assert {p.more.uid for p in parts if p.HasField("more")} == {"big"}
    assert (parts[-1].end.num_groups, parts[-1].end.num_rollouts) == (2, 51)


def test_a_group_that_fits_is_one_message():
    assert [p.WhichOneof("part") for p in encode([stemma.Group("g", [1], [stemma.Rollout([2])] * 9)])] == [
        "update", "group", "end"]


def test_cross_entropy_without_weights_sends_ones_and_keeps_those_given():
    header = _proto.UpdateHeader()
    header.loss.loss_mode = "cross_entropy"
    group = stemma.Group("g", [1], [stemma.Rollout([2, 3]), stemma.Rollout([2, 3], loss_weights=[-1, 0.5])])
    sent = groups.parts("update", header, [group])[1].group.rollouts
    assert sent[0].loss_weights == struct.pack("<2f", 1, 1) and sent[1].loss_weights == struct.pack("<2f", -1, 0.5)
    assert not encode([group])[1].group.rollouts[0].loss_weights  # other modes never read them


@pytest.mark.parametrize("of, name", [("rollout", "response_mask"), ("rollout", "old_log_prob"), ("rollout", "prompt"),
                                      ("group", "prompt_tokens"), ("group", "mask")])
def test_an_attribute_that_is_no_field_is_refused(of, name):
    rollout = stemma.Rollout([8, 9])
    made = rollout if of == "rollout" else stemma.Group("g", [5], [rollout])
    known = "tokens, advantage, reward, mask, " if of == "rollout" else "uid, prompt, rollouts, stat_group"
    with pytest.raises(AttributeError, match=f"{of.capitalize()} has no field '{name}'; there are {known}"):
        setattr(made, name, [0, 1])
    rollout.mask = [0, 1]
    assert group_of(rollout).rollouts[0].response_mask == b"\x02"


ARRAYS = ("advantage", "old_log_probs", "rollout_log_probs", "ref_log_prob", "rollout_is_weights", "loss_weights", "mask")


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("values, says", [([], "0 numbers"), (iter([]), "0 numbers"), ([-0.5], "1 number"),
                                          (numpy.array([1.0]), "1 number"), ([0, 0, 0], "3 numbers")], ids=str)
def test_an_array_that_is_given_has_one_number_for_each_token(name, values, says):
    """An empty one would not be sent, and the request would run without it."""
    with pytest.raises(ValueError, match=rf"^groups\[0\].rollouts\[0\].{name} has {says} for 2 response tokens: pass one for each$"):
        group_of(stemma.Rollout([8, 9], **{name: values}))
    group_of(stemma.Rollout([8, 9], **{name: [0, 0]}))
    group_of(stemma.Rollout([], **{name: []}))


def test_an_iterator_is_read_when_the_group_is_made():
    """The same objects are planned, sent and sent again."""
    rollout = stemma.Rollout(iter([8, 9]), mask=(m for m in [1, 0]), advantage=map(float, [1, 2]))
    rollout.old_log_probs = iter([-1.0, -2.0])
    group = stemma.Group("g0", iter([1, 2]), (r for r in [rollout]))
    first, second = encode([group]), encode([group])
    assert first == second
    sent = first[1].group.rollouts[0]
    assert (sent.response_mask, sent.token_advantages) == (b"\x01", struct.pack("<2f", 1, 2))
    assert (sent.old_log_probs, first[1].group.prompt_tokens) == (struct.pack("<2f", -1, -2), struct.pack("<2i", 1, 2))


def test_groups_and_rollouts_of_arrays_can_be_looked_for():
    """`in`, `==` and sets compared their arrays, and numpy has no one answer to that."""
    rollouts = [stemma.Rollout(numpy.array([8, 9])) for _ in range(2)]
    group = stemma.Group("g0", numpy.array([1, 2]), rollouts)
    assert rollouts[1] in rollouts and rollouts.index(rollouts[1]) == 1 and len({*rollouts, group}) == 3
    assert group in [stemma.Group("g0", numpy.array([1, 2]), rollouts), group] and group != stemma.Group("g0", [1, 2], rollouts)


@pytest.mark.parametrize("have_numpy", [True, False])
def test_a_log_prob_above_0_is_refused_where_it_counts(have_numpy, monkeypatch):
    if not have_numpy:
        monkeypatch.delitem(sys.modules, "numpy")
    for values, mask in (([-1.0, 0.0], b""), ([0.0009, -1.0], b""), ([2.0, -1.0], b"\x02"), ([float("nan")] * 2, b"")):
        _arrays.check_log_probs(struct.pack("<2f", *values), mask)
    for values, mask, says in (([-1.0, 2.5], b"", "has 2.5 at 1"), ([7.0, 0.0625], b"\x02", "has 0.0625 at 1")):
        with pytest.raises(ValueError, match=f"^{says}: a log-prob is at most 0; if these are -log p, change their sign$"):
            _arrays.check_log_probs(struct.pack("<2f", *values), mask)


def checked(fields, is_dict=False):
    rollout = {"response_tokens": [8, 9], **fields} if is_dict else stemma.Rollout(**{"tokens": [8, 9], **fields})
    return groups.parts("update", _proto.UpdateHeader(), [stemma.Group("g0", [1], [rollout])], checked=True)


@pytest.mark.parametrize("values, have_numpy", [([0.5, -1e39], True), ([0.5, -1e39], False), (numpy.array([0.5, -1e39]), True),
                                                ([0.5, numpy.float64(-1e39)], True)], ids=str)
@pytest.mark.parametrize("name", ["advantage", "rollout_is_weights"])
def test_a_number_that_float32_does_not_hold_is_refused_as_it_was_given(name, values, have_numpy, monkeypatch):
    if not have_numpy:
        monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises(ValueError) as error:
        checked({name: values})
    assert str(error.value) == f"groups[0].rollouts[0].{name} has -1e+39 at 1: pass numbers that float32 holds, up to 3.40282e+38"
    checked({name: values, "mask": [1, 0]})  # what stands where the mask is 0 is never read
    checked({name: [0.5, -math.inf]})  # the server says what is wrong with that one


class Labelled:
    """Numbers that are looked up by labels of their own, as those of a pandas Series."""

    ndim = 1

    def __init__(self, values, labels):
        self._values = dict(zip(labels, values))

    def __array__(self, dtype=None, copy=None):
        return numpy.array(list(self._values.values()), dtype=dtype)

    def __len__(self):
        return len(self._values)

    def __getitem__(self, label):
        return self._values[label]


def test_a_number_is_looked_up_by_its_place_and_not_by_a_label_of_its_own():
    checked({"advantage": Labelled([0.5, math.inf], [10, 11])})
    checked({"advantage": Labelled([math.inf, 0.5], [1, 0])})
    with pytest.raises(ValueError, match=r"advantage has -1e\+39 at 1: "):
        checked({"advantage": Labelled([0.5, -1e39], [1, 0])})
    checked({"advantage": {8: 0.5, 9: math.inf}.values()})


@pytest.mark.parametrize("name", ["tokens", *ARRAYS])
def test_an_array_with_masked_entries_is_refused_and_one_without_is_taken(name):
    values = [8, 9] if name == "tokens" else [0.0, 0.0]
    with pytest.raises(ValueError, match=rf"rollouts\[0\].{name} has masked entries, .*: pass the plain array, and .* `mask`"):
        checked({name: numpy.ma.array(values, mask=[0, 1])})
    checked({name: numpy.ma.array(values, mask=[0, 0])})


class Gives:
    """Gives an array, as objects of frameworks do."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array

    def __iter__(self):
        return iter(self._array.data)


@pytest.mark.parametrize("name", ["tokens", *ARRAYS])
@pytest.mark.parametrize("given", [list, tuple, Gives, lambda array: numpy.array(list(array), dtype=object)],
                         ids=["list", "tuple", "gives", "objects"])
def test_a_list_of_masked_entries_is_refused_and_so_is_what_gives_such_an_array(name, given):
    values = [8, 9] if name == "tokens" else [0.0, 0.0]
    with pytest.raises(ValueError, match=rf"^groups\[0\].rollouts\[0\].{name} has masked entries, "):
        checked({name: given(numpy.ma.array(values, mask=[0, 1]))})
    checked({name: given(numpy.ma.array(values, mask=[0, 0]))})


MASKED = [numpy.ma.masked, numpy.ma.array(0.5, mask=True), numpy.ma.array([0.5], mask=[True])]


@pytest.mark.parametrize("value", MASKED, ids=["masked", "array", "one"])
def test_a_masked_number_is_none(value):
    with pytest.raises(ValueError, match=r"^groups\[0\].rollouts\[0\].reward is masked, which is no number: leave it out or pass one"):
        checked({"reward": value})
    if not value.ndim:
        with pytest.raises(ValueError, match=r"^groups\[0\].rollouts\[0\].advantage is masked, which is no number"):
            checked({"advantage": value})
        for name in ("old_log_probs", "advantage", "mask"):
            with pytest.raises(ValueError, match=rf"^groups\[0\].rollouts\[0\].{name} has masked entries, "):
                checked({name: [0.0, value]})
    with pytest.raises(ValueError, match="^learning_rate is masked: pass a number$"):
        config.fill_message(_proto.UpdateHeader().adam, {"learning_rate": value})
    checked({"reward": numpy.ma.array(0.5, mask=False), "old_log_probs": [-0.5, numpy.ma.array(-0.5, mask=False)]})


@pytest.mark.parametrize("values", [[True, False], [7, True], [False], numpy.array([True, False])], ids=str)
def test_truths_are_no_token_ids(values):
    with pytest.raises(ValueError, match=r"^has (True|False) at \d, a bool: pass a flat list|^holds bool: pass a flat list"):
        _arrays.pack_int32(values)


class Scalar:
    """As a tensor of one element is: also one of bool is an index to Python."""

    def __init__(self, value, dtype):
        self._value, self.dtype, self.ndim = value, dtype, 0

    def __index__(self):
        return int(self._value)


def test_truths_of_a_framework_are_no_token_ids():
    with pytest.raises(ValueError, match=r"^groups\[0\].rollouts\[0\].tokens has True at 1, a bool: pass a flat list"):
        checked({"tokens": [Scalar(7, "torch.int64"), Scalar(True, "torch.bool")]})


class CountedDtype:
    """Counts how often it is looked at."""

    looks = 0

    def __str__(self):
        self.looks += 1
        return "torch.int64"


def test_a_dtype_that_many_token_ids_have_is_looked_at_once():
    """A million numpy integers took 36 times as long as a million of Python's."""
    dtype = CountedDtype()
    with pytest.raises(ValueError, match="^has True at 100, a bool"):
        _arrays.pack_int32([*(Scalar(i, dtype) for i in range(100)), True])
    assert dtype.looks == 1


@pytest.mark.parametrize("values", [numpy.array([1, 0], dtype="c16"), numpy.array([1, 0], dtype="c8"), [1j, 0], [1 + 0j, 0]], ids=str)
def test_a_complex_number_is_no_bit_of_a_mask(values):
    with pytest.raises(ValueError, match=r"^has .* at 0: pass a flat list or one-dimensional array of 0 and 1"):
        _arrays.pack_bits(values)


def test_a_number_of_a_dict_that_float32_does_not_hold_is_refused():
    with pytest.raises(ValueError, match="token_advantages has 1e\\+39 at 0"):
        checked({"token_advantages": iter([1e39, 0.0])}, is_dict=True)


@pytest.mark.parametrize("fields, says", [
    ({"reward": 10**400}, "reward is 10{56}\\.\\.\\.: pass a number of at most 1.79769e\\+308"),
    ({"advantage": -10**5000}, "advantage is a whole number of 16610 bits: pass a number of at most"),
    ({"advantage": [1.0, 10**400]}, "advantage has 10{56}\\.\\.\\. at 1: pass numbers that float32 holds, up to 3.40282e\\+38"),
])
def test_a_whole_number_that_no_float_holds_is_refused_with_its_value(fields, says):
    with pytest.raises(ValueError, match=rf"^groups\[0\].rollouts\[0\].{says}"):
        checked(fields)


def test_a_base64_mask_that_is_too_short_is_left_to_the_server():
    tokens, above = list(range(9)), [0.0] * 8 + [0.5]
    rollout = {"response_tokens": tokens, "old_log_probs": above, "response_mask": "/w=="}  # eight ones
    group = encode([{"uid": "g", "prompt_tokens": [1], "rollouts": [rollout]}], checked=True)[1].group
    assert group.rollouts[0].response_mask == b"\xff"
