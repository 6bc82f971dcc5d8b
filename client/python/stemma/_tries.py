"""Tries of a call, the pauses between them, and deadlines. Private to this package.

A call that may be tried again is a generator of *steps*: each makes a try and yields the seconds to pause before the
next one; the answer is what the generator returns. A thread sleeps through the pauses. A coroutine lets the threads of an
executor make the tries and waits by itself, so that a thread is held no longer than a try takes, however long a server
recovers.
"""

import asyncio
import contextlib
import math
import time

from . import _arrays, errors

# A longer timeout is none: gRPC counts a deadline in nanoseconds since 1970, in 64 bits, and one beyond them (7e9 s from now)
# is over at once.
_TIMEOUT_MAX_S = 1e9


def run(steps):
    """The answer. The calling thread makes the tries and sleeps between them."""
    while True:
        pause_s, answer = _step(steps)
        if pause_s is None:
            return answer
        time.sleep(pause_s)


async def run_in_threads(steps, cancel, executor):
    """The answer, as run gives it. A task that is cancelled makes no further try, and ends the one that a thread makes by
    cancel()."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            pause_s, answer = await loop.run_in_executor(executor, _step, steps)
            if pause_s is None:
                return answer
            await asyncio.sleep(pause_s)
    except asyncio.CancelledError:
        cancel()
        raise


def _step(steps):
    """(seconds until the next step, None), or (None, the answer). A StopIteration cannot leave a thread of an executor."""
    try:
        return next(steps), None
    except StopIteration as end:
        return None, end.value


def deadline_of(timeout_s):
    """The time of time.monotonic() at which it is over; None: never."""
    if timeout_s is None:
        return None
    seconds = _arrays.real(timeout_s)
    if not _is_time(seconds):
        raise ValueError(f"timeout_s is {timeout_s!r:.60}: pass seconds, or None to wait as long as it takes")
    return None if seconds > _TIMEOUT_MAX_S else time.monotonic() + seconds


def checked_s(name, value):
    """The seconds, which an argument that cannot be left open takes."""
    seconds = _arrays.real(value)
    if not _is_time(seconds):
        raise ValueError(f"{name} is {value!r:.60}: pass seconds, a number from 0 on")
    return seconds


def _is_time(seconds):
    return seconds is not None and seconds >= 0


@contextlib.contextmanager
def in_time(timeout_s, what):
    """Yields the deadline. Turns a call that nobody answered by then into a TimeoutError.

    what    what was asked for, and what becomes of it now: "export 'a', which goes on at the server"
    """
    deadline = deadline_of(timeout_s)
    try:
        yield deadline
    except errors.StemmaError as error:
        if not ran_out(error, deadline):
            raise
        raise timed_out(what, timeout_s, error) from error


def timed_out(what, timeout_s, error):
    """The TimeoutError of in_time."""
    return TimeoutError(f"there was no answer in {timeout_s} s to {what} ({error.message})")


def left_s(deadline):
    """Seconds until it is over, at least 0; infinity: it never is."""
    return math.inf if deadline is None else max(deadline - time.monotonic(), 0)


def is_over(deadline):
    return deadline is not None and time.monotonic() >= deadline


def ran_out(error, deadline):
    """Whether a call failed for want of time: nobody answered by then. What a server answered is its answer, however
    late."""
    return is_over(deadline) and error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
