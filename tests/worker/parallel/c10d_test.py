"""Ranks that are processes: c10d over Gloo on loopback. Every collective against plain sums, and peers that are killed,
stopped or never come."""

import contextlib
import os
import pathlib
import random
import re
import select
import signal
import socket
import subprocess
import time

import pytest

_RANK = pathlib.Path(os.environ["STEMMA_BUILD_DIR"]) / "tests" / "test_rank"
_HANG = 120  # seconds that no test takes unless it hangs


class _Rank:
    def __init__(self, mode, rank, size, store, join=60, collective=60, seed=1):
        self.mode, self.rank = mode, rank
        self.process = subprocess.Popen([_RANK, mode, str(rank), str(size), store, str(join), str(collective), str(seed)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def line(self, word):
        """The rest of the next line, which begins with this word."""
        deadline = time.monotonic() + _HANG
        assert select.select([self.process.stdout], [], [], deadline - time.monotonic())[0], f"rank {self.rank}: no {word}"
        line = self.process.stdout.readline().decode()  # unbuffered: select sees every line that is not read
        assert line.startswith(word + " ") or line == word + "\n", f"rank {self.rank}: {line!r}"
        return line[len(word):].strip()

    def rest(self):
        out, _ = self.process.communicate(timeout=_HANG)
        assert self.process.returncode == 0, (self.rank, self.process.returncode, out)
        return out.decode().splitlines()


class _Gang:
    def __init__(self, mode, size, started=None, host="127.0.0.1", **options):
        self.ranks = [_Rank(mode, 0, size, f"{host}:0", **options)]
        self.store = self.ranks[0].line("store")
        self.ranks += [_Rank(mode, rank, size, self.store, **options) for rank in range(1, started or size)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.process.kill()  # a stopped one too
            rank.process.communicate()


def _draw_seed():
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    return seed


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_collective_is_the_plain_sum_or_copy_on_the_same_bits(size):
    seed = _draw_seed()
    with _Gang("program", size, seed=seed) as gang:
        outputs = [rank.rest() for rank in gang.ranks]
    digests = [[line.split()[1:] for line in out if line.startswith("digests ")] for out in outputs]
    assert not [line for out in outputs for line in out if line.startswith(("failure", "error"))]
    assert {common for rank in digests for common, _ in rank} == {digests[0][0][0]}, "other bits on another rank, or in a repeat"
    for first, again in digests:
        assert first == again
    assert len({out[-1] for out in outputs}) == 1 and outputs[0][-1].startswith("all_reduce 15 ")
    # A rank's own digest is that of its parts of reduce-scatters: added in the order of the ranks, here and there.
    threads = [line.split() for line in _Rank("threads", 0, size, "127.0.0.1:0", seed=seed).rest()]
    assert [(word, own) for word, _, own in threads] == [("digests", first[1]) for first, _ in digests]


@pytest.mark.parametrize("size", [2, 3])
def test_tensors_of_a_device_and_of_the_host_go_by_backends_of_their_own(size):
    """The device's refuses tensors of the host, and the other way round."""
    seed = _draw_seed()
    with _Gang("device", size, seed=seed) as gang:
        outputs = [rank.rest() for rank in gang.ranks]
    assert not [line for out in outputs for line in out if not line.startswith("digests ")]
    for out in outputs:  # two axes, on the host and on the device: the same bits; one carries messages alone on the device
        everything, messages = [*out[:2], out[4]], [*out[2:4], *out[5:]]
        assert len(out) == 7 and len(set(everything)) == 1 and len(set(messages)) == 1


def _lost(gang, lost, what, within):
    """What each survivor says, within that many seconds of the loss and with all survivors still there."""
    survivors = [rank for rank in gang.ranks if rank.rank != lost]
    began = time.monotonic()
    gang.ranks[lost].process.send_signal(what)
    outputs = [(rank.rank, rank.line("broken") if rank.mode in ("reduce", "large") else None, rank.line("error")) for rank in survivors]
    assert time.monotonic() - began < within
    for rank in survivors:
        rank.rest()
    return outputs


# 10 s is far above the 10 ms that it takes, and far below the 60 s of the collective's own timeout.
@pytest.mark.parametrize("size, lost", [(2, 1), (4, 0), (4, 3)])
def test_a_killed_rank_is_seen_by_every_other(size, lost):
    with _Gang("reduce", size) as gang:
        for rank in gang.ranks:
            rank.line("ready")
        for rank, broken, error in _lost(gang, lost, signal.SIGKILL, within=10):
            assert re.match(rf"UNAVAILABLE: all-reduce gradients of axis dp, rank {rank} of {size}: a peer has ended, or was killed", error)
            same, seconds = broken.split()  # the next call: the same error, and nothing is sent, so it takes microseconds
            assert same == "1" and float(seconds) < 1


def test_a_rank_killed_with_several_calls_in_flight_is_seen_by_every_other():
    """With three at once one may be killed inside a message, which Gloo tells when the time is over alone (the test of that is
    below): some of a few, and not each, are seen at once."""
    said = []
    for _ in range(3):
        with _Gang("overlap", 4) as gang:
            for rank in gang.ranks:
                rank.line("ready")
            said = [(rank, error) for rank, _, error in _lost(gang, 2, signal.SIGKILL, within=90)]
        if not any("or was killed inside a message" in error for _, error in said):
            break
    for rank, error in said:
        assert re.match(rf"UNAVAILABLE: reduce-scatter [abc] of axis dp, rank {rank} of 4: a peer has ended, or was killed", error)


@pytest.mark.parametrize("_", range(2))
def test_a_rank_killed_in_any_collective_is_seen_by_every_other(_):
    draw = random.Random(seed := _draw_seed())
    with _Gang("rounds", 3, seed=seed) as gang:
        for rank in gang.ranks:
            rank.line("ready")
        time.sleep(draw.uniform(0, 0.3))  # somewhere in the rounds
        for rank, _, error in _lost(gang, draw.randrange(3), signal.SIGKILL, within=10):
            assert re.match(rf"rank {rank} of 3, seed \d+: [a-z -]+: UNAVAILABLE: .* of axis dp, rank {rank} of 3: a peer has ended", error)


@pytest.mark.parametrize("_", range(2))
def test_a_rank_killed_inside_a_message_is_seen_when_the_time_is_over(_):
    """By its server all hear of it at once; Gloo does not tell who has sent or received a part of a message."""
    draw = random.Random(_draw_seed())
    with _Gang("large", 3, collective=2) as gang:
        for rank in gang.ranks:
            rank.line("ready")
        time.sleep(draw.uniform(0, 0.3))
        lost = draw.randrange(3)
        gang.ranks[lost].process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)  # the others take what was sent: the beginning of a message, as a rule
        for rank, broken, error in _lost(gang, lost, signal.SIGKILL, within=20):
            ended = re.match(rf"UNAVAILABLE: reduce-scatter gradients of axis dp, rank {rank} of 3: "
                             r"(a peer has ended, or was killed|timed out after 2s: .*, or was killed inside a message) \(", error)
            assert ended and broken.split()[0] == "1", error


def test_no_rank_dies_of_a_write_to_one_that_has_died():
    with _Gang("reduce", 2) as gang:
        for rank in gang.ranks:
            rank.line("ready")
            status = pathlib.Path(f"/proc/{rank.process.pid}/status").read_text()
            assert int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16) >> (signal.SIGPIPE - 1) & 1


def test_a_stopped_rank_is_seen_when_the_time_is_over():
    with _Gang("reduce", 3, collective=2) as gang:
        for rank in gang.ranks:
            rank.line("ready")
        outputs = _lost(gang, 1, signal.SIGSTOP, within=20)
    for rank, _, error in outputs:
        assert f"all-reduce gradients of axis dp, rank {rank} of 3: " in error
    # Who waits for it itself says so; another may hear first that this one gave up.
    assert any("timed out after 2s: a peer hangs" in error for _, _, error in outputs), outputs


def test_a_rank_that_never_comes_ends_the_rendezvous():
    with _Gang("reduce", 3, started=2, join=2) as gang:
        (opener,), (joiner,) = (rank.rest() for rank in gang.ranks)
    assert opener == "error UNAVAILABLE: rendezvous of axis dp, rank 0: rank 2 of 3 did not come within 2s"
    # By then the store may have gone with rank 0.
    assert joiner.startswith(("error UNAVAILABLE: rendezvous of axis dp, rank 1: rank 2 of 3 did not come within 2s",
                              "error UNAVAILABLE: rendezvous of axis dp, rank 1: a peer has ended")), joiner


def test_a_store_that_is_not_there_is_said():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        store = f"127.0.0.1:{free.getsockname()[1]}"
        (line,) = _Rank("reduce", 1, 2, store, join=1).rest()
    assert line.startswith(f"error UNAVAILABLE: no store of the gang answers on {store}: "), line


def test_an_address_that_cannot_be_listened_on_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        store = f"127.0.0.1:{taken.getsockname()[1]}"
        (line,) = _Rank("reduce", 0, 2, store).rest()
        assert line == f"error UNAVAILABLE: cannot listen on {store}: Address already in use"
    (line,) = _Rank("reduce", 0, 2, "somewhere:0").rest()
    assert line.startswith('error INVALID_ARGUMENT: "somewhere" is no IP address'), line


def _listeners(pid):
    """(host, port) of every TCP socket that the process listens on, the host as /proc writes it."""
    inodes = set()
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as the one that lists the folder is
            if match := re.match(r"socket:\[(\d+)\]", os.readlink(descriptor)):
                inodes.add(match[1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                host, port = fields[1].split(":")
                found.add((host, int(port, 16)))
    return found


# 127.0.0.2 stands for a host's address on its network: this host's name may well stand for 127.0.0.1.
@pytest.mark.parametrize("host,number", [("127.0.0.1", "0100007F"), ("127.0.0.2", "0200007F")])
def test_ranks_listen_on_the_address_that_they_are_given_and_nowhere_else(host, number):
    with socket.socket() as everywhere:
        everywhere.bind(("", 0))
        everywhere.listen()
        assert ("00000000", everywhere.getsockname()[1]) in _listeners(os.getpid())  # the check sees one that does
    with _Gang("reduce", 2, host=host) as gang:
        for rank in gang.ranks:
            rank.line("ready")
        sockets = [_listeners(rank.process.pid) for rank in gang.ranks]
    assert (number, int(gang.store.split(":")[1])) in sockets[0]
    assert all(listening and {at for at, _ in listening} == {number} for listening in sockets), sockets
