"""Whether memory grows with what a process is asked: a function of samples, and the samples of a real process."""

import pathlib

# Ids of ended requests stay by design (about 200 bytes each), and malloc's arenas fill by pages as other threads serve: no
# more than 264 KiB was seen, while 1 KiB a call is 750 KiB over three quarters of 1,000 calls.
NOISE_BYTES = 512 << 10


def anonymous_bytes(pid):
    """What the process holds in memory, without the files that it maps."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon:")).split()[1]) << 10


def growth(samples):
    """Bytes from the first quarter of the samples to the last: the least of each, for what comes and goes is no growth."""
    quarter = len(samples) // 4
    return min(samples[-quarter:]) - min(samples[:quarter])


def is_flat(samples):
    """`samples`: bytes after the warm-up, at even distances, 8 at the least."""
    assert len(samples) >= 8, samples
    return growth(samples) <= NOISE_BYTES
