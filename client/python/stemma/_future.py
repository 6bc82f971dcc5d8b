"""A request under way, and how long one waits for it. Made by stemma.Client; private to this package but for its methods."""

import asyncio
import concurrent.futures
import contextlib
import logging
from typing import Any, Dict, Generator

from . import _proto, _tries, errors, results
from ._recording import warn
from ._recovery import Recovery
from ._stub import CancellableStub
from ._tries import deadline_of, is_over, left_s, ran_out

_LOG = logging.getLogger("stemma")
_POLL_MS = 20_000
# How long `await` asks the server to wait, and waits itself for the answer before it asks again. It then waits twice as long,
# so that an answer that is large or late comes through.
_ASYNC_POLL_MS = 2_000
_ASYNC_ANSWER_S = 3.0
_ASYNC_ANSWER_MAX_S = 60.0
_STOPPING_POLL_S = 0.2  # between looks at a request that a server let go of, because it stops
_THREAD = "stemma-await"
_FINAL = ("DONE", "FAILED", "CANCELLED", "ROLLED_BACK")


class Future:
    """A request under way: what submit and attach return. `await future` gives its result in a coroutine, where result()
    would hold the event loop; asyncio.ensure_future(future) makes the task that asyncio.wait takes."""

    request_id: str

    def __init__(self, client, status, return_log_probs, cancel_on_interrupt=False):
        self._client, self._status, self._return_log_probs = client, status, return_log_probs
        self._cancel_on_interrupt = cancel_on_interrupt
        self.request_id = status.request_id
        self._recovery = Recovery(client, self.request_id)

    def __repr__(self):
        return (f"Future({self.request_id!r}, {self.status['state']}, {self._status.steps_applied} of "
                f"{self._status.steps_total} steps)")

    @property
    def status(self) -> Dict[str, Any]:
        """The state as last heard: state, steps_applied, steps_total, queue_position, ... as a dict."""
        return _proto.to_dict(self._status)

    def done(self) -> bool:
        """Whether the request is final. Asks the server, without waiting."""
        if not self._is_final():
            self._heard(_tries.run(self._poll(0)))
        return self._is_final()

    def cancel(self) -> bool:
        """Ends the request between two optimizer steps; a step that was committed stays. True if it was in time."""
        self._heard(self._client._cancel(self.request_id))
        return self.status["state"] == "CANCELLED"

    def result(self, timeout_s=None) -> results.UpdateResult:
        """The UpdateResult. Raises StemmaError when the request failed or was cancelled, TimeoutError when it is not
        final in time (it goes on; ask again), RequestInterrupted on Ctrl-C. Where the steps are applied and the log-probs of
        return_log_probs are no longer kept, it comes without them, with a warning.

        timeout_s   how long to wait for it, and for the log-probs of return_log_probs. 0: ask once; None: until the
                    request is final, or its server has had no workers for the client's recovery_timeout_s (RECOVERING)
        """
        return self._result(timeout_s, deadline_of(timeout_s))

    def _result(self, timeout_s, deadline):
        with interruptible(self._client, self.request_id, self._cancel_on_interrupt):
            with self._in_time(timeout_s, deadline):
                while not self._is_final():
                    self._heard(_tries.run(self._poll(int(min(_POLL_MS, left_s(deadline) * 1000)), deadline)))
                    if not self._is_final() and is_over(deadline):
                        raise about_request(TimeoutError(f"request {self.request_id} is {self.status['state']} after {timeout_s} s; "
                                                         "it goes on"), self.request_id)
                    if self._may_wait_for_workers():
                        _tries.run(self._recovery.look(deadline, self._client._stub))
            result = self._outcome()
            if self._return_log_probs:
                with self._in_time(timeout_s, deadline), _kept_or_not(result):
                    result.log_probs = _tries.run(self._client._read_log_probs(self.request_id, deadline))
            return result

    @contextlib.contextmanager
    def _in_time(self, timeout_s, deadline):
        """Turns a call that nobody answered by then into a TimeoutError."""
        try:
            yield
        except errors.StemmaError as error:
            if not ran_out(error, deadline):
                raise
            raise about_request(TimeoutError(
                f"request {self.request_id} was {self.status['state']} when it was last heard of, and there was no answer in "
                f"{timeout_s} s ({error.message})"), self.request_id) from error

    def __await__(self) -> Generator[Any, None, results.UpdateResult]:
        return self._wait().__await__()

    async def _wait(self):
        """A cancelled task leaves the request as it is, or with cancel_on_interrupt ends it."""
        thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix=_THREAD)
        try:
            return await self._awaited(thread)
        except asyncio.CancelledError:
            if self._cancel_on_interrupt:
                state = await asyncio.get_running_loop().run_in_executor(thread, self._client._try_cancel, self.request_id)
                if not state:
                    _LOG.warning("%s", errors.RequestInterrupted(self.request_id, state))
            raise
        finally:
            thread.shutdown(wait=False)

    async def _awaited(self, thread):
        """Asks in a thread of its own, which waits for the server: those of the loop's executor stay free for others."""
        stub, told = CancellableStub(self._client._stub, _ASYNC_ANSWER_S), False
        while not self._is_final():
            try:
                self._heard(await _tries.run_in_threads(self._poll(_ASYNC_POLL_MS, stub=stub), stub.cancel, thread))
                stub.answer_s = _ASYNC_ANSWER_S
                if self._may_wait_for_workers():
                    await _tries.run_in_threads(self._recovery.look(None, stub), stub.cancel, thread)
            except errors.StemmaError as error:
                if error.code != "DEADLINE_EXCEEDED":  # of a server that is gone, gRPC's pings tell
                    raise
                if not told:
                    _LOG.warning("no answer about request %s (%s); asking again, with up to %.0f s for each answer",
                                 self.request_id, error.message, _ASYNC_ANSWER_MAX_S)
                told, stub.answer_s = True, min(_ASYNC_ANSWER_MAX_S, 2 * stub.answer_s)
                await asyncio.sleep(self._client._retry_delay_s)
        result = self._outcome()
        if self._return_log_probs:
            stub.answer_s = _ASYNC_ANSWER_MAX_S  # what does not come is an error here
            with _kept_or_not(result):
                result.log_probs = await _tries.run_in_threads(
                    self._client._read_log_probs(self.request_id, stub=stub), stub.cancel, thread)
        return result

    def _heard(self, status):
        """Keeps the status. Only the answer to what sent the request says `replayed`."""
        status.replayed = status.replayed or self._status.replayed
        self._status = status

    def _is_final(self):
        return self.status["state"] in _FINAL and not self._waits_for_next_server()

    def _waits_for_next_server(self):
        """A server that stops lets go of its requests; the next one goes on with them where it keeps them (durability)."""
        return self._status.failure.reason == "DRAINING" and self._client._retries > 0

    def _may_wait_for_workers(self):
        return self.status["state"] == "ACCEPTED"

    def _poll(self, wait_ms, deadline=None, stub=None):
        """Asks once for the status; yields as Client._steps. A server that stops answers that at once, and then goes:
        what follows is that nobody answers."""
        stops = self._status if self._waits_for_next_server() else None
        if stops is not None:
            yield _STOPPING_POLL_S
        try:
            return (yield from self._client._get_request(self.request_id, wait_ms, self._status.lineage, deadline, stub))
        except errors.StemmaError as error:
            if stops is None or error.code != "UNAVAILABLE" or is_over(deadline):
                raise
            raise errors.from_failure(stops) from error

    def _outcome(self):
        """The result, without log-probs."""
        if self._status.HasField("failure"):
            raise errors.from_failure(self._status)
        if not self._status.HasField("result"):
            raise errors.StemmaError("CANCELLED", "CANCELLED", f"request {self.request_id} was cancelled after "
                                     f"{self._status.steps_applied} of {self._status.steps_total} steps")
        result = results.update_result(self._status)
        for step in result.steps[-1:]:
            self._client._saw(self._status.lineage, step.step)
        return result


@contextlib.contextmanager
def _kept_or_not(result):
    """Lets a result go without log-probs that are no longer kept: an error would hide that its steps are applied, and who sends
    them again under another id trains twice."""
    try:
        yield
    except errors.StemmaError as error:
        if error.reason != "REQUEST_ID_EXPIRED":
            raise
        text = (f"request {result.request_id} is DONE, and what its steps applied stays: do not send it again. Only its log-probs "
                f"are gone ({error.message})")
        result.warnings.append(text)
        warn(text, stacklevel=5)  # whoever called result() or update_actor()


def about_request(error, request_id):
    """The error, which as those of errors.py says by its request_id what it is about."""
    error.request_id = request_id
    return error


@contextlib.contextmanager
def interruptible(client, request_id, cancel, accepted=True):
    """Turns Ctrl-C into an error that says what becomes of the request; with `cancel` ends it first.

    accepted    true, or a list that is not empty, once the server has said that it took the request
    """
    try:
        yield
    except errors.RequestInterrupted:
        raise
    except KeyboardInterrupt:
        state = client._try_cancel(request_id) if cancel else None
        raise errors.RequestInterrupted(request_id, state, bool(accepted)) from None
