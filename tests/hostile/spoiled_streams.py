"""What the fuzzer does to a good stream, and what may be answered to each of it."""

import random
import struct

from hostile.hostile_cluster import Request
from stemma import _proto

INVALID, SHORT, LIMIT, UNSUPPORTED, REUSED, MISMATCH = (
    "INVALID_REQUEST", "SHORT_STREAM", "LIMIT_EXCEEDED", "UNSUPPORTED", "REQUEST_ID_REUSED", "STEP_MISMATCH")
ACCEPTED = "accepted"
# For bytes that are no message, gRPC itself says no more than the code.
BROKEN = "broken"
CODES = {INVALID: "INVALID_ARGUMENT", SHORT: "INVALID_ARGUMENT", LIMIT: "RESOURCE_EXHAUSTED",
         UNSUPPORTED: "FAILED_PRECONDITION", REUSED: "ALREADY_EXISTS", MISMATCH: "ABORTED",
         "LINEAGE_MISMATCH": "ABORTED", "GROUP_TOO_LARGE": "RESOURCE_EXHAUSTED"}


class Stream:
    """The parts of one request, to be spoiled; `answers` is what may be said to it."""

    def __init__(self, rng, index):
        self.rng = rng
        request = Request(uids=tuple(f"g{i}" for i in range(rng.randint(1, 3))))
        request.header["request"]["request_id"] = f"fuzz/{index}"
        request.header["request"]["validate_only"] = rng.random() < 0.7
        self.parts = request.parts()
        self.answers = {ACCEPTED}

    @property
    def header(self):
        return self.parts[0].update

    def groups(self):
        return [p.group for p in self.parts if p.WhichOneof("part") == "group"]

    def rollout(self):
        group = self.rng.choice(self.groups())
        return self.rng.choice(group.rollouts)

    def continued(self):
        return [p.more for p in self.parts if p.WhichOneof("part") == "more"]

    def count(self):
        """What `end` says, made true again."""
        for part in self.parts:
            if part.WhichOneof("part") == "end":
                part.end.num_groups = len(self.groups())
                part.end.num_rollouts = sum(len(g.rollouts) for g in self.groups() + self.continued())


def floats(rng, count, special=None):
    values = [rng.uniform(-3, 0) for _ in range(count)]
    if special is not None and values:
        values[0] = special  # under an open mask: a masked value may be anything
    return struct.pack(f"<{count}f", *values)


# ---- what is done to a stream: each returns what may be answered

def length_of_an_array(s):
    rollout, name = s.rollout(), s.rng.choice(["old_log_probs", "ref_log_prob"])
    size = s.rng.choice([0, 1, 2, 3, 5, 4 * 3 - 1, 4 * 3 + 4, 4000])
    setattr(rollout, name, bytes(size))
    return {INVALID}


def length_of_a_mask(s):
    s.rollout().response_mask = bytes(s.rng.choice([2, 3, 100, 30000]))
    return {INVALID}


def tokens(s):
    bad = s.rng.choice([-1, -2**31, 2**31 - 1, 10**6])
    if s.rng.random() < 0.5:
        s.rollout().response_tokens = struct.pack("<3i", 1, bad, 2)
    else:
        s.rng.choice(s.groups()).prompt_tokens = struct.pack("<2i", 1, bad)
    return {INVALID}


def torn_tokens(s):
    s.rollout().response_tokens = bytes(s.rng.choice([1, 2, 3, 5, 13]))
    return {INVALID}


def number_that_is_not_finite(s):
    special = s.rng.choice([float("nan"), float("inf"), float("-inf")])
    rollout = s.rollout()
    if s.rng.random() < 0.3:
        rollout.advantage = special
    else:
        setattr(rollout, s.rng.choice(["old_log_probs", "ref_log_prob"]), floats(s.rng, 3, special))
    return {INVALID}


def names(s):
    value = s.rng.choice(["", "x" * 257, "\N{SNOWMAN}" * 300])
    if s.rng.random() < 0.5 and not s.continued():
        s.rng.choice(s.groups()).uid = value
    else:
        s.rollout().rollout_id = value
    return {INVALID}


def twice_the_same_name(s):
    rollouts = [r for g in s.groups() for r in g.rollouts]
    if len(rollouts) < 2:
        return {ACCEPTED}
    rollouts[0].rollout_id = rollouts[-1].rollout_id
    return {INVALID}


def twice_the_same_group(s):
    s.parts.insert(1, type(s.parts[1]).FromString(s.parts[1].SerializeToString()))
    s.count()
    return {INVALID}


def knob(s):
    loss = s.header.loss
    name, value = s.rng.choice([
        ("loss_mode", "vanila"), ("loss_mode", ""), ("loss_agg_mode", "token-sum-mean"), ("temperature", 0.0),
        ("temperature", -1.0), ("temperature", float("nan")), ("clip_ratio_low", -0.1), ("clip_ratio_c", 1.0),
        ("kl_loss_coef", float("inf")), ("kl_loss_type", "kl9"), ("loss_scale_factor", 2.0)])
    setattr(loss, name, value)
    return {INVALID}


def missing_knob(s):
    s.header.loss.ClearField(s.rng.choice(["temperature", "clip_ratio_low", "clip_ratio_high", "kl_loss_coef"]))
    return {INVALID}


def adam(s):
    name, value = s.rng.choice([("beta1", 1.0), ("beta2", 1.5), ("beta1", -0.1), ("eps", 0.0), ("learning_rate", -1.0),
                                ("learning_rate", float("nan")), ("weight_decay", -1.0), ("max_grad_norm", -1.0)])
    setattr(s.header.adam, name, value)
    return {INVALID}


def header_name(s):
    s.header.request.request_id = s.rng.choice(["", "../x", "a b", "x" * 129, "x" * 60000, "-a", "a\n"])
    return {INVALID}


def unknown_field(s):
    message = s.rng.choice([s.header, s.header.loss, s.header.request, s.rng.choice(s.groups()), s.rollout()])
    message.MergeFromString(b"\xf2\x3f\x02ab")  # field 1022, two bytes
    return {INVALID}


def cut(s):
    del s.parts[s.rng.randint(1, len(s.parts) - 1):]
    return {SHORT}


def no_header(s):
    del s.parts[0]
    return {SHORT}


def order(s):
    kind = s.rng.randrange(5)
    if kind == 0:
        s.parts.insert(s.rng.randint(1, len(s.parts)), s.parts[0])
    elif kind == 1:
        s.parts.append(s.parts[-1])
    elif kind == 2:
        s.parts.insert(s.rng.randint(0, len(s.parts)), _proto.GroupPart())
    elif kind == 3:
        s.parts.insert(1, s.parts[-1])
    else:
        part = _proto.GroupPart()
        part.more.uid = "nobody"
        s.parts.insert(s.rng.randint(1, len(s.parts) - 1), part)
    return {SHORT}


def counts(s):
    end = s.parts[-1].end
    if s.rng.random() < 0.5:
        end.num_groups = s.rng.choice([0, 99, 2**64 - 1])
    else:
        end.num_rollouts = s.rng.choice([0, 99, 2**64 - 1])
    return {SHORT}


def announced(s):
    s.header.num_groups = s.rng.choice([0, 7, 2**63])
    return {SHORT}


def empty_group(s):
    del s.groups()[-1 if len(s.groups()) > 1 else 0].rollouts[:]
    s.parts = [p for p in s.parts if p.WhichOneof("part") != "more"]
    s.count()
    return {INVALID}


def no_group(s):
    s.parts = [s.parts[0], s.parts[-1]]
    s.count()
    return {INVALID}


def many(s):
    kind = s.rng.randrange(3)
    if kind == 0:
        for i in range(9):
            part = _proto.GroupPart()
            part.group.CopyFrom(s.groups()[0])
            part.group.uid = f"many{i}"
            for r, rollout in enumerate(part.group.rollouts):
                rollout.rollout_id = f"many{i}/{r}"
            s.parts.insert(-1, part)
    elif kind == 1:
        for i in range(25):
            s.groups()[0].rollouts.add().CopyFrom(s.groups()[0].rollouts[0])
            s.groups()[0].rollouts[-1].rollout_id = f"many/{i}"
    else:
        s.groups()[0].prompt_tokens = struct.pack("<i", 1) * 601
    s.count()
    return {LIMIT}


def steps(s):
    s.header.ppo_epochs = s.rng.choice([17, 1000, 2**32 - 1])
    return {LIMIT}


def shuffled(s):
    s.header.shuffle = True
    s.header.seed = s.rng.getrandbits(64)
    groups = len(s.groups())
    s.header.ppo_epochs = s.rng.randint(1, 16)
    return {LIMIT} if groups * s.header.ppo_epochs > 24 else {ACCEPTED}


def zero(s):
    name = s.rng.choice(["ppo_epochs", "ppo_mini_batch_size"])
    setattr(s.header, name, 0)
    return {INVALID}


def mini_batches(s):
    s.header.ppo_mini_batch_size = s.rng.choice([1, 2, 3, 2**32, 2**64 - 1])
    s.header.ppo_epochs = s.rng.randint(1, 4)
    return {ACCEPTED}


def expectation(s):
    s.header.request.expected_step = 2**64 - 1 - s.rng.randint(0, 9)
    return {MISMATCH}


def more_rollouts(s):
    group = s.groups()[0]
    if len(group.rollouts) < 2:
        return {ACCEPTED}
    part = _proto.GroupPart()
    part.more.uid = group.uid
    part.more.rollouts.add().CopyFrom(group.rollouts[-1])
    del group.rollouts[-1]
    s.parts.insert(s.rng.randint(2, len(s.parts) - 1), part)
    return {ACCEPTED}


def nothing(s):
    return {ACCEPTED}


HARMLESS = [nothing, mini_batches, more_rollouts, shuffled]
HARMFUL = [length_of_an_array, length_of_a_mask, tokens, torn_tokens, number_that_is_not_finite, names, twice_the_same_name,
           twice_the_same_group, knob, missing_knob, adam, header_name, unknown_field, cut, no_header, order, counts,
           announced, empty_group, no_group, many, steps, zero, expectation]


def make(seed, index):
    """The stream, the names of what was done to it, and what may be answered."""
    rng = random.Random(f"{seed}/{index}")
    stream = Stream(rng, index)
    done = [rng.choice(HARMLESS)]
    answers = done[0](stream)
    if rng.random() < 0.8:
        done.append(rng.choice(HARMFUL))
        harm = done[1](stream)
        answers = answers | harm
        if ACCEPTED not in harm:
            answers.discard(ACCEPTED)
    data = [part.SerializeToString() for part in stream.parts]
    if rng.random() < 0.1:
        answers = {BROKEN}
        done.append(scramble)
        scramble(rng, data)
    return data, [action.__name__ for action in done], answers


def scramble(rng, data):
    """Bytes that were messages: some turned, some lost, some doubled."""
    for _ in range(rng.randint(1, 4)):
        i = rng.randrange(len(data))
        raw = bytearray(data[i])
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(raw) + 1)
            choice = rng.randrange(3)
            if choice == 0 and at < len(raw):
                raw[at] ^= 1 << rng.randrange(8)
            elif choice == 1:
                del raw[at:at + rng.randint(1, 9)]
            else:
                raw[at:at] = rng.randbytes(rng.randint(1, 9))
        data[i] = bytes(raw)
