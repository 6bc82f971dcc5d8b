"""A seeded, structured fuzzer of request streams against a real server.

    python tests/hostile/fuzz_streams.py [--streams N] [--seed S]

Each stream is a good request with none, one or two things done to it; what may be answered is known for each of them. A
stream is a function of (seed, index), so a failure prints both, and `--seed S --only I` sends that one again. Needs
STEMMA_BUILD_DIR and PYTHONPATH as the tests have them. Without --seed a fresh one is drawn and printed.
"""

import argparse
import collections
import random
import sys

from hostile.hostile_cluster import Cluster, memory_mib, refusal, serves
from hostile.spoiled_streams import ACCEPTED, BROKEN, CODES, make
from stemma import _proto

CONFIG = "limits:\n  groups: 8\n  rollouts: 24\n  tokens: 600\n  steps: 16\n  planned_groups: 24\n  message_bytes: 65536\n"


def said(call):
    """What was answered: ACCEPTED, or (code, reason)."""
    error = call.exception()
    if error is None:
        return ACCEPTED, call.result()
    told = refusal(call.result)
    return (told.code.name, told.reason), told


def wrong(answers, answer):
    """Why the answer is not among those that may be given, or nothing."""
    if BROKEN in answers:
        # Whatever the bytes say by now: the sender is told that it is the sender's mistake, or it was none.
        allowed = {ACCEPTED, ("INTERNAL", "")} | {(code, reason) for reason, code in CODES.items()}
    else:
        allowed = {a if a == ACCEPTED else (CODES[a], a) for a in answers}
    return None if answer in allowed else f"answered {answer}, must be one of {sorted(map(str, allowed))}"


def run(seed, indices, cluster):
    """Sends the streams, some at a time; returns the failures and how often each answer was given."""
    raw = cluster.channel.stream_unary("/stemma.v1.TrainingService/UpdateActor", request_serializer=None,
                                       response_deserializer=_proto.message_class("stemma.v1.RequestStatus").FromString)
    failures, seen, flying = [], collections.Counter(), collections.deque()

    def land():
        index, done, answers, call = flying.popleft()
        answer, told = said(call)
        seen[str(answer)] += 1
        if problem := wrong(answers, answer):
            failures.append(f"--seed {seed} --only {index} ({', '.join(done)}): {problem}; {told}")

    for index in indices:
        data, done, answers = make(seed, index)
        flying.append((index, done, answers, raw.future(iter(data), timeout=120)))
        if len(flying) >= 8:
            land()
    while flying:
        land()
    return failures, seen


def campaign(seed, indices):
    with Cluster(fake=True, config=CONFIG) as cluster:
        serves(cluster)
        before = memory_mib(cluster)
        failures, seen = run(seed, indices, cluster)
        serves(cluster)
        grown = memory_mib(cluster) - before
        if grown > 200:
            failures.append(f"--seed {seed}: the server grew by {grown:.0f} MiB")
    return failures, seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None, help="the index of the one stream to send")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}", flush=True)
    indices = range(options.streams) if options.only is None else [options.only]
    failures, seen = campaign(seed, indices)
    for answer, count in seen.most_common():
        print(f"{count:8} {answer}")
    for failure in failures[:20]:
        print(failure)
    print(f"{len(failures)} of {len(indices)} streams were answered wrongly")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
