"""F9: what users really pass: each input is taken and means what it says, or is refused by a sentence that says what to pass."""

import array
import dataclasses
import random

import numpy
import pytest
import stemma
import torch
from e2e.errors.server import Cluster
from stemma import _arrays, _proto, groups

SEED = 90_210
TOKENS, NUMBERS, MASK = [5, 6, 7], [-1.0, -2.5, 0.5], [1, 0, 1]
OK = stemma.Rollout([5, 6, 7], reward=1.0)


def sent(rollout, **fields):
    """The rollout's message."""
    return groups.parts("update", _proto.UpdateHeader(), [stemma.Group("g", [1, 2], [rollout], **fields)])[1].group.rollouts[0]


def refusal(build):
    """The sentence with which an update is refused before anything is sent."""
    client = stemma.Client("127.0.0.1:1")
    with pytest.raises(ValueError) as error:
        build(client)
    return str(error.value)


def update(group_list, loss=stemma.grpo(), adam=stemma.adamw(1e-3), **options):
    return lambda client: client.update_actor(group_list, loss=loss, adam=adam, **options)


def of_rollout(**fields):
    return update([stemma.Group("g", [1, 2], [stemma.Rollout(**{"tokens": TOKENS, "reward": 1.0, **fields})])])


def of_group(**fields):
    return update([stemma.Group(**{"uid": "g", "prompt": [1, 2], "rollouts": [OK], **fields})])


@dataclasses.dataclass(repr=False, eq=False)
class Described(stemma.Rollout):
    text: str = "a response"


@dataclasses.dataclass(repr=False, eq=False)
class Split(stemma.Group):
    split: str = "train"


REFUSED = {
    "adam is a number": (update([stemma.Group("g", [1], [OK])], adam=1e-3), ["adam is 0.001", "adam=stemma.adamw(0.001)"]),
    "adam is a loss": (update([stemma.Group("g", [1], [OK])], adam=stemma.grpo()), ["adam is LossConfig", "stemma.adamw(1e-6)"]),
    "adam is absent": (update([stemma.Group("g", [1], [OK])], adam=None), ["adam is required", "stemma.adamw(1e-6)"]),
    "loss is a name": (update([stemma.Group("g", [1], [OK])], loss="grpo"), ["loss is 'grpo'", "loss=stemma.grpo()"]),
    "loss is not called": (update([stemma.Group("g", [1], [OK])], loss=stemma.grpo), ["loss is the function grpo: call it"]),
    "a rate as text": (update([stemma.Group("g", [1], [OK])], adam=stemma.adamw("1e-3")),
                       ["adam.learning_rate is '1e-3': pass a number"]),
    "an unknown loss field": (update([stemma.Group("g", [1], [OK])], loss={"loss_mode": "gpg", "clip": 1}),
                              ["no field 'clip'", "clip_ratio_low"]),
    "one group": (update(stemma.Group("g", [1], [OK])), ["groups is one Group: pass a list, [group]"]),
    "one dict": (update({"uid": "g", "prompt_tokens": [1], "rollouts": [OK]}), ["groups is one dict: pass a list"]),
    "no groups": (update([]), ["groups is empty"]),
    "an empty generator": (update(g for g in ()), ["groups is empty"]),
    "groups are text": (update("g0"), ["groups is 'g0': pass a list of stemma.Group"]),
    "groups are None": (update(None), ["groups is None"]),
    "a group is text": (update(["g0"]), ["groups[0] is 'g0': pass a stemma.Group"]),
    "a group is a rollout": (update([OK]), ["groups[0] is Rollout(", "pass a stemma.Group"]),
    "one rollout": (of_group(rollouts=OK), ["groups[0].rollouts is one Rollout: pass a list, [rollout]"]),
    "rollouts are token lists": (of_group(rollouts=[[1, 2]]), ["groups[0].rollouts[0] is [1, 2]: pass a stemma.Rollout"]),
    "rollouts are a number": (of_group(rollouts=4), ["groups[0].rollouts is 4: pass a list of stemma.Rollout"]),
    "a text prompt": (of_group(prompt="What is 2 + 2?"), ["prompt is text, 'What is 2 + 2?'", "tokenizer.encode"]),
    "a prompt that is base64": (of_group(prompt="abcdefgh"), ["prompt is text, 'abcdefgh'"]),
    "a text prompt in a dict": (update([{"uid": "g", "prompt_tokens": "hello you", "rollouts": [OK]}]), ["is text, 'hello you'"]),
    "a text response": (of_rollout(tokens="four"), ["groups[0].rollouts[0].tokens is text, 'four'"]),
    "a bytes prompt": (of_group(prompt=b"\1\0\0\0"), ["is b'\\x01\\x00\\x00\\x00', a bytes: pass a flat list"]),
    "an empty prompt": (of_group(prompt=[]), ["groups[0].prompt is empty"]),
    "no prompt": (of_group(prompt=None), ["groups[0] lacks prompt"]),
    "no response": (of_rollout(tokens=None), ["groups[0].rollouts[0] lacks tokens"]),
    "a nested prompt": (of_group(prompt=[[1, 2]]), ["prompt has [1, 2] at 0, a list: pass a flat list"]),
    "a batch of prompts": (of_group(prompt=torch.ones(1, 3, dtype=torch.int64)), ["has shape (1, 3)", "take one row"]),
    "a ragged array": (of_group(prompt=numpy.array([[1], [2, 3]], dtype=object)), ["has [1] at 0, a list"]),
    "a ragged list of arrays": (of_group(prompt=[numpy.array([1, 2]), numpy.array([3])]), ["has array([1, 2]) at 0"]),
    "a scalar prompt": (of_group(prompt=numpy.int64(4)), ["prompt has shape ()"]),
    "a number as prompt": (of_group(prompt=4), ["prompt is 4, an int: pass a flat list"]),
    "a set as prompt": (of_group(prompt={1, 2}), ["a set: pass a flat list"]),
    "a tokenizer's whole answer": (of_group(prompt={"input_ids": [1]}), ["a dict: pass a flat list"]),
    "floats as tokens": (of_group(prompt=[1.0, 2.0]), ["prompt has 1.0 at 0, a float: pass a flat list"]),
    "a float array as tokens": (of_group(prompt=numpy.array([1.0])), ["holds float64", "integers"]),
    "a float tensor as tokens": (of_group(prompt=torch.ones(3)), ["holds float32", "integers"]),
    "an ignored label": (of_rollout(tokens=[5, -100, 7]), ["has -100 at 1", "not negative", "set its mask to 0"]),
    "a negative id in an array": (of_rollout(tokens=numpy.array([5, 6, -1])), ["has -1 at 2"]),
    "a huge id": (of_rollout(tokens=[2**31]), ["has 2147483648 at 0", "fit int32"]),
    "a huge id in an array": (of_rollout(tokens=numpy.array([1, 2**40])), [f"has {2**40} at 1", "fit int32"]),
    "a uid that is a number": (of_group(uid=3), ["groups[0].uid is 3: pass a string"]),
    "a short mask": (of_rollout(mask=[1]), ["mask has 1 number for 3 response tokens"]),
    "an empty mask": (of_rollout(mask=[]), ["mask has 0 numbers for 3 response tokens"]),
    "a mask of halves": (of_rollout(mask=[1, 0.5, 0]), ["mask has 0.5 at 1: pass a flat list"]),
    "a mask of -1": (of_rollout(mask=numpy.array([1, -1, 0])), ["has -1 at 1"]),
    "a mask for a batch": (of_rollout(mask=torch.ones(1, 3)), ["mask has shape (1, 3)"]),
    "a reward of each token": (of_rollout(reward=[0.0, 0.0, 1.0]), ["reward is [0.0, 0.0, 1.0]: pass one number"]),
    "a reward tensor of each token": (of_rollout(reward=torch.ones(3)), ["reward is tensor([1., 1., 1.]): pass one number"]),
    "a reward as text": (of_rollout(reward="1.0"), ["reward is '1.0': pass one number"]),
    "no log-probs": (of_rollout(old_log_probs=[]), ["rollouts[0].old_log_probs has 0 numbers for 3 response tokens: pass one"]),
    "log-probs of a batch's width": (of_rollout(ref_log_prob=torch.zeros(5)), ["ref_log_prob has 5 numbers for 3 response"]),
    "log-probs of bools": (of_rollout(old_log_probs=numpy.array([True, False, True])), ["old_log_probs holds bool: pass a flat list"]),
    "one advantage in a tensor": (of_rollout(advantage=torch.tensor([0.5])), ["advantage has 1 number for 3 response tokens"]),
    "negated log-probs": (of_rollout(old_log_probs=[-0.5, 1.25, 3.0]),
                          ["rollouts[0].old_log_probs has 1.25 at 1: a log-prob is at most 0", "change their sign"]),
    "negated log-probs in a dict": (update([{"uid": "g", "prompt_tokens": [1], "rollouts": [
        {"response_tokens": [1], "rollout_log_probs": [2.0], "reward": 1.0}]}]), ["rollout_log_probs has 2 at 0: a log-prob"]),
    "log-probs of one of two": (of_group(rollouts=[stemma.Rollout([1], reward=1.0, old_log_probs=[-1.0]), OK]),
                                ['groups[0].rollouts[1] lacks old_log_probs, which old="client" reads', 'old="policy"']),
    "a tensor without data": (of_rollout(old_log_probs=torch.ones(3, device="meta")),
                              ["old_log_probs is a tensor of torch.float32 that cannot be read", "pass a flat list"]),
    "a sparse tensor": (of_rollout(old_log_probs=torch.ones(3).to_sparse()), ["cannot be read", "pass a flat list"]),
    "log-probs as text": (of_rollout(old_log_probs=["a"] * 3), ["old_log_probs has 'a' at 0, a str"]),
    "log-probs of None": (of_rollout(old_log_probs=[None] * 3), ["old_log_probs has None at 0, a NoneType"]),
    "an unknown field": (update([{"uid": "g", "prompt_tokens": [1], "rollouts": [{"response_tokens": [1], "colour": 3}]}]),
                         ["groups[0].rollouts[0].colour: no such field; there are rollout_id"]),
    "an unknown field of a kind of Rollout": (of_group(rollouts=[Described([1], reward=1.0)]),
                                              ["groups[0].rollouts[0].text: no such field; there are rollout_id, tokens, mask,"]),
    "an unknown field of a kind of Group": (update([Split("g", [1], [OK])]),
                                            ["groups[0].split: no such field; there are uid, prompt, rollouts, stat_group"]),
    "a mini-batch as text": (update([stemma.Group("g", [1], [OK])], mini_batch="2"), ["mini_batch is '2'"]),
    "a negative mini-batch": (update([stemma.Group("g", [1], [OK])], mini_batch=-1), ["mini_batch is -1"]),
    "epochs of a half": (update([stemma.Group("g", [1], [OK])], epochs=0.5), ["epochs is 0.5: pass a whole number"]),
    "a request_id that is a number": (update([stemma.Group("g", [1], [OK])], request_id=7), ["request_id is 7"]),
    "old from elsewhere": (update([stemma.Group("g", [1], [OK])], old="weights"), ["log-probs come from 'weights'?", "'policy'"]),
}


@pytest.mark.parametrize("build, says", REFUSED.values(), ids=REFUSED.keys())
def test_f9_what_cannot_be_sent_is_refused_by_a_sentence(build, says):
    text = refusal(build)
    print(text)
    assert all(part in text for part in says), text
    assert "\n" not in text and len(text) < 300


@pytest.mark.parametrize("tokens", [
    TOKENS, tuple(TOKENS), iter(TOKENS), (t for t in TOKENS), range(5, 8), array.array("q", TOKENS), numpy.array(TOKENS),
    numpy.array(TOKENS, dtype=numpy.int64), numpy.array(TOKENS, dtype=numpy.uint8), numpy.array(TOKENS, dtype=object),
    [numpy.int64(t) for t in TOKENS], torch.tensor(TOKENS), torch.tensor(TOKENS, dtype=torch.int32),
    list(torch.tensor(TOKENS)), torch.tensor([5, 0, 6, 0, 7])[::2], numpy.array([7, 6, 5])[::-1]],
    ids=lambda t: f"{type(t).__name__}-{getattr(t, 'dtype', '')}")
def test_f9_token_ids_come_in_any_form(tokens):
    assert list(_arrays.unpack("i", sent(stemma.Rollout(tokens)).response_tokens)) == TOKENS


@pytest.mark.parametrize("numbers", [
    NUMBERS, tuple(NUMBERS), iter(NUMBERS), numpy.array(NUMBERS), numpy.array(NUMBERS, dtype=numpy.float16),
    torch.tensor(NUMBERS), torch.tensor(NUMBERS, dtype=torch.bfloat16), torch.tensor(NUMBERS, dtype=torch.float16),
    torch.tensor(NUMBERS, dtype=torch.float64), torch.tensor(NUMBERS, requires_grad=True),
    torch.tensor(NUMBERS).to(torch.float8_e4m3fn), torch.tensor(NUMBERS).to(torch.float8_e5m2),
    torch.tensor(NUMBERS, dtype=torch.bfloat16, requires_grad=True), list(torch.tensor(NUMBERS, dtype=torch.bfloat16)),
    torch.tensor([NUMBERS, NUMBERS]).t()[:, 0]], ids=lambda t: f"{type(t).__name__}-{getattr(t, 'dtype', '')}")
def test_f9_numbers_come_in_any_form_bfloat16_too(numbers):
    held = list(numbers) if hasattr(numbers, "__next__") else numbers
    make = (lambda: iter(held)) if hasattr(numbers, "__next__") else (lambda: held)
    message = sent(stemma.Rollout(TOKENS, old_log_probs=make(), advantage=make()))
    assert list(_arrays.unpack("f", message.old_log_probs)) == NUMBERS  # exact: all of them are bfloat16 numbers
    assert list(_arrays.unpack("f", message.token_advantages)) == NUMBERS


@pytest.mark.parametrize("mask", [
    MASK, [True, False, True], [1.0, 0.0, 1.0], iter(MASK), numpy.array(MASK), numpy.array(MASK, dtype=bool),
    numpy.array(MASK, dtype=numpy.float32), [numpy.bool_(m) for m in MASK], torch.tensor(MASK), torch.tensor(MASK).bool(),
    torch.tensor(MASK, dtype=torch.bfloat16), list(torch.tensor(MASK))], ids=lambda t: f"{type(t).__name__}-{getattr(t, 'dtype', '')}")
def test_f9_masks_come_in_any_form(mask):
    assert sent(stemma.Rollout(TOKENS, mask=mask)).response_mask == b"\x05"


@pytest.mark.parametrize("reward", [0.5, numpy.float32(0.5), numpy.float64(0.5), numpy.array(0.5), torch.tensor(0.5),
                                    torch.tensor(0.5, dtype=torch.bfloat16), torch.tensor(0.5, requires_grad=True),
                                    torch.tensor([0.5])], ids=lambda t: f"{type(t).__name__}-{getattr(t, 'shape', '')}")
def test_f9_one_number_comes_in_any_form(reward):
    assert sent(stemma.Rollout(TOKENS, reward=reward)).reward == 0.5


def test_f9_whole_numbers_and_truths_are_rewards():
    assert [sent(stemma.Rollout(TOKENS, reward=r)).reward for r in (True, 0, numpy.int64(1))] == [1, 0, 1]


def test_f9_every_bfloat16_arrives_as_the_same_number():
    print("seed", SEED)
    rng = random.Random(SEED)
    bits = [rng.randrange(0x7F80) | rng.choice([0, 0x8000]) for _ in range(2000)]  # finite ones, of both signs
    tensor = torch.tensor([b - 0x10000 if b & 0x8000 else b for b in bits], dtype=torch.int16).view(torch.bfloat16)
    packed = _arrays.pack_float32(tensor)
    assert list(numpy.frombuffer(packed, "<u4")) == [b << 16 for b in bits]


def test_f9_packed_masks_of_arrays_and_lists_are_the_same_bits():
    print("seed", SEED)
    rng = random.Random(SEED)
    for count in [0, 1, 7, 8, 9, 64, *(rng.randrange(300) for _ in range(20))]:
        mask = [rng.randrange(2) for _ in range(count)]
        assert _arrays.pack_bits(mask) == _arrays.pack_bits(numpy.array(mask, dtype=int)) == _arrays.pack_bits(torch.tensor(mask))
        assert _arrays.unpack_bits(_arrays.pack_bits(mask), count) == mask


def test_f9_a_uid_that_makes_an_id_too_long_is_named():
    """The server's own words are read for it: here they come from a server."""
    with Cluster() as cluster, stemma.Client(cluster.address) as client:
        with pytest.raises(stemma.StemmaError) as error:
            update([stemma.Group("u" * 255, [1, 2], [OK, OK])])(client)
    text = str(error.value)
    assert "groups[0].uid has 255 bytes" in text and "more than 256: pass a shorter uid" in text, text
    assert "groups[0].rollouts" not in text and [field for field, _ in error.value.fields] == ["groups[0].uid"]


def test_f9_a_server_takes_generators_tensors_and_numpy_scalars():
    """The whole way: the same update from plain lists and from what a torch training loop holds."""
    def plain():
        return [stemma.Group(f"g{g}", [1, 2, 3 + g], [stemma.Rollout([4, 5 + r, 6], mask=[1, 1, r % 2], reward=float(r))
                                                     for r in range(3)]) for g in range(2)]

    def tensors():
        for group in plain():
            yield stemma.Group(group.uid, torch.tensor(group.prompt), (
                stemma.Rollout(numpy.array(r.tokens), mask=torch.tensor(r.mask).bool(),
                               reward=torch.tensor(r.reward, dtype=torch.bfloat16, requires_grad=True))
                for r in group.rollouts))

    options = dict(loss=stemma.grpo(), adam=stemma.adamw(numpy.float32(0.0), weight_decay=0.0), epochs=numpy.int64(2),
                   mini_batch=numpy.int32(1), shuffle=numpy.bool_(True), seed=torch.tensor(3))
    with Cluster(flags=("--dtype", "fp64")) as cluster, stemma.Client(cluster.address) as client:
        first, second = client.update_actor(plain(), **options), client.update_actor(tensors(), **options)
        assert len(first.steps) == 4
        assert [s.metrics["actor/grad_norm"] for s in first.steps] == [s.metrics["actor/grad_norm"] for s in second.steps]
        assert client.log_probs(tensors()).keys() == client.log_probs(plain()).keys()
