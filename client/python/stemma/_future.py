"""A request under way, and how long one waits for it. Made by stemma.Client; private to this package but for its methods."""

import asyncio
import contextlib
import math
import numbers
import time

from . import _proto, errors, results

_POLL_MS = 20_000
_ASYNC_POLL_MS = 2_000  # of `await`: a task that is cancelled, or a loop that ends, waits at most so long for its thread
_STOPPING_POLL_S = 0.2  # between looks at a request that a server let go of, because it stops
_FINAL = ("DONE", "FAILED", "CANCELLED", "ROLLED_BACK")


class Future:
    """A request under way: what submit and attach return. `await future` gives its result in a coroutine, where result()
    would hold the event loop."""

    def __init__(self, client, status, return_log_probs, cancel_on_interrupt=False):
        self._client, self._status, self._return_log_probs = client, status, return_log_probs
        self._cancel_on_interrupt = cancel_on_interrupt
        self.request_id = status.request_id

    def __repr__(self):
        return (f"Future({self.request_id!r}, {self.status['state']}, {self._status.steps_applied} of "
                f"{self._status.steps_total} steps)")

    @property
    def status(self):
        """The state as last heard: state, steps_applied, steps_total, queue_position, ... as a dict."""
        return _proto.to_dict(self._status)

    def done(self):
        """Whether the request is final. Asks the server, without waiting."""
        if not self._is_final():
            self._poll(0)
        return self._is_final()

    def cancel(self):
        """Ends the request between two optimizer steps; a step that was committed stays. True if it was in time."""
        self._status = self._client._cancel(self.request_id)
        return self.status["state"] == "CANCELLED"

    def result(self, timeout_s=None):
        """The UpdateResult. Raises StemmaError when the request failed or was cancelled, TimeoutError when it is not
        final in time (it goes on; ask again), RequestInterrupted on Ctrl-C.

        timeout_s   how long to wait, 0: ask once; None: until the request is final
        """
        return self._result(timeout_s, deadline_of(timeout_s))

    def _result(self, timeout_s, deadline):
        with interruptible(self._client, self.request_id, self._cancel_on_interrupt):
            try:
                while not self._is_final():
                    left_s = math.inf if deadline is None else max(deadline - time.monotonic(), 0)
                    self._poll(int(min(_POLL_MS, left_s * 1000)), deadline)
                    if not self._is_final() and is_over(deadline):
                        raise TimeoutError(f"request {self.request_id} is {self.status['state']} after {timeout_s} s; it goes on")
            except errors.StemmaError as error:
                if not ran_out(error, deadline):
                    raise
                raise TimeoutError(f"request {self.request_id} was {self.status['state']} when it was last heard of, and there "
                                   f"was no answer in {timeout_s} s ({error.message})") from error
            return self._outcome()

    def __await__(self):
        return self._wait().__await__()

    async def _wait(self):
        """Polls in threads of the loop's own executor, so that other coroutines run meanwhile; a cancelled task leaves the
        request as it is."""
        loop = asyncio.get_running_loop()
        while not self._is_final():
            await loop.run_in_executor(None, self._poll, _ASYNC_POLL_MS)
        return await loop.run_in_executor(None, self._outcome)

    def _is_final(self):
        return self.status["state"] in _FINAL and not self._waits_for_next_server()

    def _waits_for_next_server(self):
        """A server that stops lets go of its requests; the next one goes on with them where it keeps them (durability)."""
        return self._status.failure.reason == "DRAINING" and self._client._retries > 0

    def _poll(self, wait_ms, deadline=None):
        """Asks once. A server that stops answers that at once, and then goes: what follows is that nobody answers."""
        stops = self._status.failure if self._waits_for_next_server() else None
        if stops is not None:
            time.sleep(_STOPPING_POLL_S)
        try:
            self._status = self._client._get_request(self.request_id, wait_ms, self._status.lineage, deadline)
        except errors.StemmaError as error:
            if stops is None or error.code != "UNAVAILABLE" or is_over(deadline):
                raise
            raise errors.from_failure(stops) from error

    def _outcome(self):
        if self._status.HasField("failure"):
            raise errors.from_failure(self._status.failure)
        if not self._status.HasField("result"):
            raise errors.StemmaError("CANCELLED", "CANCELLED", f"request {self.request_id} was cancelled after "
                                     f"{self._status.steps_applied} of {self._status.steps_total} steps")
        result = results.update_result(self._status)
        for step in result.steps[-1:]:
            self._client._saw(self._status.lineage, step.step)
        if self._return_log_probs:
            result.log_probs = self._client.read_log_probs(self.request_id)
        return result


@contextlib.contextmanager
def interruptible(client, request_id, cancel, accepted=True):
    """Turns Ctrl-C into an error that says what becomes of the request; with `cancel` ends it first."""
    try:
        yield
    except errors.RequestInterrupted:
        raise
    except KeyboardInterrupt:
        state = client._try_cancel(request_id) if cancel else None
        raise errors.RequestInterrupted(request_id, state, accepted) from None


def deadline_of(timeout_s):
    """The time of time.monotonic() at which it is over; None: never."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real) or not timeout_s >= 0:
        raise ValueError(f"timeout_s is {timeout_s!r}: pass seconds, or None to wait as long as it takes")
    return None if timeout_s == math.inf else time.monotonic() + float(timeout_s)


def is_over(deadline):
    return deadline is not None and time.monotonic() >= deadline


def ran_out(error, deadline):
    """Whether a call failed for want of time: nobody answered by then. What a server answered is its answer, however late."""
    return is_over(deadline) and error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
