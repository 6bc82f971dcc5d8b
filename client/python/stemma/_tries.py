"""Tries of a call, the pauses between them, and deadlines. Private to this package.

A call that may be tried again is a generator of *steps*: each makes a try and yields the seconds to pause before the
next one; the answer is what the generator returns. A thread sleeps through the pauses. A coroutine lets the threads of an
executor make the tries and waits by itself, so that a thread is held no longer than a try takes, however long a server
recovers.

The main thread makes no call of gRPC itself. A Ctrl-C may be raised between any two of its operations: inside of gRPC that
leaves a lock held, for which all later calls then wait, by their deadlines, too.
"""

import _thread
import asyncio
import contextlib
import math
import sys
import threading
import time

from . import _arrays, errors

# A longer timeout is none: gRPC counts a deadline in nanoseconds since 1970, in 64 bits, and one beyond them (7e9 s from now)
# is over at once.
_TIMEOUT_MAX_S = 1e9


_here = threading.local()  # .run: the Run whose tries this thread makes


def run(steps):
    """The answer. The calling thread makes the tries and sleeps between them; of the main thread another one does, and what
    interrupts it ends the try."""
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return _run(steps)
    beside = Run(steps)
    try:
        return beside.answer()
    except BaseException:
        beside.stop()
        raise


def once(call):
    """The call's answer, as run gives it; it is not tried again."""
    def steps():
        return call()
        yield  # of no pause
    return run(steps())


def current():
    """The Run whose tries the calling thread makes; None: it waits for its calls itself."""
    return getattr(_here, "run", None)


class Run:
    """Tries that a thread of their own makes while the main thread waits for them."""

    def __init__(self, steps):
        self._steps, self._call, self._stopped = steps, None, False
        self._answer, self._error = None, None
        self._ended = _thread.allocate_lock()  # a bare one: what interrupts its acquire leaves it as it is
        self._ended.acquire()
        _thread.start_new_thread(self._make, ())

    def answer(self):
        """Waits for it. Raises what the tries raised."""
        self._ended.acquire()
        if self._error is not None:
            raise self._error
        return self._answer

    def stop(self):
        """Ends the call under way, and lets none follow: in yet another thread, for this one may be interrupted again."""
        self._stopped = True
        _thread.start_new_thread(self._cancel, ())

    def hold(self, call):
        """The call, which stop() ends."""
        self._call = call
        if self._stopped:  # since before it was there to be ended
            call.cancel()
        return call

    def _cancel(self):
        call = self._call
        if call is not None:
            call.cancel()

    def _make(self):
        _here.run = self
        try:
            self._answer = _run(self._steps, lambda: self._stopped)
        except BaseException as error:
            self._error = None if self._stopped else error  # it would hold the call
        finally:
            self._call = None  # gRPC's own end of it comes in this thread
            self._ended.release()


def _run(steps, is_stopped=lambda: False):
    while not is_stopped():
        pause_s, answer = _step(steps)
        if pause_s is None:
            return answer
        time.sleep(pause_s)
    return None


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
