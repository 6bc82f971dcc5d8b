"""The calls of a Client about checkpoints."""

import re
import time
from typing import List

from . import _proto, config, errors, results
from ._tries import in_time, is_over, timed_out

_CLIENT_STATE_BYTES_MAX = 1 << 20
_LOAD_UNTOLD_S = 60.0  # the log speaks of workers that take longer to load what this client asked for


class CheckpointCalls:
    """What Client inherits; its retries, its lineage and its stub are Client's."""

    def save_checkpoint(self, name=None, *, pinned=False, client_state=b"", timeout_s=None) -> results.Checkpoint:
        """Saves the training state, after the requests that were accepted before; returns a Checkpoint once it is whole on
        the server's disk and was read back. Requests that come meanwhile do not wait for that.

        Where the connection is lost meanwhile, the call is repeated. A checkpoint of the name, or without one of a name that
        the server gives, that is there by then is the answer if it has the model's lineage and step, and was saved with as many
        bytes and the same pin; one that is still being written is waited for. Any other of the name is the error
        CHECKPOINT_EXISTS, as it is without a loss.

        name          a name that no checkpoint has, no path; None: step-00000120, after the step
        pinned        whether it stays until it is deleted by name; else the newest few are kept
        client_state  bytes that load_checkpoint gives back, at most 1 MiB: where your data loader stands
        timeout_s     how long to wait for it; TimeoutError after it. The server may go on and save it: list_checkpoints says.
                      None: as long as it takes
        """
        if not isinstance(client_state, bytes):
            raise ValueError(f"client_state is a {type(client_state).__name__}: pass bytes")
        if len(client_state) > _CLIENT_STATE_BYTES_MAX:
            raise ValueError(f"client_state has {len(client_state)} bytes, at most {_CLIENT_STATE_BYTES_MAX} are kept")
        request = _proto.SaveCheckpointRequest(name="" if name is None else config.checked_text("name", name),
                                               pinned=config.checked_truth("pinned", pinned), client_state=client_state)
        self._pin(request)
        what = f"the save of a checkpoint{f' {name!r}' if name else ''}, which may go on at the server"
        with in_time(timeout_s, what) as deadline:
            lost, give_up = [], time.monotonic() + self._recovery_timeout_s
            while True:
                try:
                    return self._retrying(lambda timeout=None: self._saved(request, lost, timeout, deadline), deadline)
                except errors.StemmaError as error:
                    if error.reason != "CHECKPOINT_EXISTS" or not lost:
                        raise
                    if saved := self._saved_before(request, deadline):
                        return saved
                    listed = any(known.name == request.name for known in self._checkpoints(deadline))
                    if listed or time.monotonic() >= give_up:
                        raise
                    if is_over(deadline):
                        raise timed_out(what, timeout_s, error) from error
                time.sleep(self._retry_delay_s)  # it is being written, or that has failed just now

    def load_checkpoint(self, name=None, *, timeout_s=None) -> results.LoadedCheckpoint:
        """Makes a checkpoint's state the model's, after the requests that were accepted before; returns a LoadedCheckpoint.
        Steps after it are given up, and their requests answer ROLLED_BACK. The next call waits until workers have loaded it.

        name        the checkpoint's; None: the newest one of the model's lineage
        timeout_s   how long to wait for it; TimeoutError after it. A load that still waits for requests is given up then. One
                    that was made stays, and as this client did not hear of it, its next call is a LineageLostError. None: as
                    long as it takes
        """
        request = _proto.LoadCheckpointRequest(name="" if name is None else config.checked_text("name", name))
        self._pin(request)
        with in_time(timeout_s, f"the load of {f'checkpoint {name!r}' if name else 'the newest checkpoint'}, which may have been made; "
                     "the model's lineage says") as deadline:
            reply = self._retrying(lambda timeout=None: self._stub.LoadCheckpoint(request, timeout=timeout), deadline)
        with self._lineage_lock:  # what was asked for is no loss
            self._lineage, self._step = reply.lineage, reply.step
        self._untold_until = time.monotonic() + _LOAD_UNTOLD_S
        return results.LoadedCheckpoint(checkpoint=results.checkpoint(reply.checkpoint), client_state=reply.client_state,
                                        lineage=reply.lineage, step=reply.step, weight_version=reply.weight_version)

    def list_checkpoints(self) -> List[results.Checkpoint]:
        """The checkpoints that the server has, oldest first, as a list of Checkpoint."""
        return self._checkpoints(None)

    def verify_checkpoint(self, name) -> results.Checkpoint:
        """Reads every byte of a checkpoint; returns a Checkpoint, whose `damage` says what is wrong with it.

        name  the checkpoint's
        """
        request = _proto.VerifyCheckpointRequest(name=config.checked_text("name", name))
        return results.checkpoint(self._retrying(lambda: self._stub.VerifyCheckpoint(request)))

    def pin_checkpoint(self, name, pinned=True) -> results.Checkpoint:
        """Lets a checkpoint stay until it is deleted by name, or go when newer ones are there; returns a Checkpoint.

        name    the checkpoint's
        pinned  whether it stays
        """
        request = _proto.PinCheckpointRequest(name=config.checked_text("name", name),
                                              pinned=config.checked_truth("pinned", pinned))
        return results.checkpoint(self._retrying(lambda: self._stub.PinCheckpoint(request)))

    def delete_checkpoint(self, name) -> None:
        """Removes a checkpoint. Refused (CHECKPOINT_IN_USE) is the one with which recovery would begin, and one whose
        weights a request reads that is open or may be computed again.

        name  the checkpoint's
        """
        request = _proto.DeleteCheckpointRequest(name=config.checked_text("name", name))
        self._deleting(lambda: self._stub.DeleteCheckpoint(request))

    def _checkpoints(self, deadline):
        request = _proto.ListCheckpointsRequest()
        reply = self._retrying(lambda timeout=None: self._stub.ListCheckpoints(request, timeout=timeout), deadline)
        return [results.checkpoint(known) for known in reply.checkpoints]

    def _saved(self, request, lost, timeout, deadline):
        """Makes one try."""
        if lost and not request.name and (saved := self._saved_before(request, deadline)):
            return saved  # by its next name the server would save it twice
        reply = self._noting_loss(lambda: self._stub.SaveCheckpoint(request, timeout=timeout), lost)
        self._saw(reply.lineage, reply.step)
        return results.checkpoint(reply)

    def _saved_before(self, request, deadline):
        """The checkpoint that a try of the same save left, or None where that cannot be told."""
        model = self._model(deadline)
        names = re.compile(re.escape(request.name) if request.name else rf"step-{model.step:08d}(-\d+)?")
        wanted = (model.lineage, model.step, request.pinned, len(request.client_state))
        for known in reversed(self._checkpoints(deadline)):
            same = (known.lineage, known.step, known.pinned, known.client_state_bytes) == wanted
            if same and names.fullmatch(known.name) and not known.damage:
                self._saw(known.lineage, known.step)
                return known
        return None
