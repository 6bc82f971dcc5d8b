"""The calls of a Client that write the weights out and remove what was written, and what they lead to."""

import time
from typing import Optional

from . import _proto, config, errors
from ._tries import in_time, is_over, timed_out


class Export(str):
    """The path of an export on the server's machine, <data>/exports/<name>; a str, with what it holds beside it.

    step            of the weights that were written
    weight_version  of the weights that were written
    lineage         of the weights that were written
    bytes           of its safetensors files alone: config.json and the tokenizer's files come on top; None where the answer
                    was lost, and the export was found again
    """

    step: int
    weight_version: int
    lineage: str
    bytes: Optional[int]

    def __new__(cls, path, step, weight_version, lineage, bytes=None):
        out = super().__new__(cls, path)
        out.step, out.weight_version, out.lineage, out.bytes = step, weight_version, lineage, bytes
        return out

    def __getnewargs__(self):
        """Exports cross processes whole, as errors do."""
        return str(self), self.step, self.weight_version, self.lineage, self.bytes


class ExportCalls:
    """What Client inherits; its retries, its lineage and its stub are Client's."""

    def export(self, name, dtype=None, *, timeout_s=None) -> Export:
        """Writes the weights as a Hugging Face directory <data>/exports/<name>, after the requests that were accepted before;
        returns an Export, which is its path and says the step of what was written. Requests that come meanwhile wait.

        Where the connection is lost meanwhile, the call is repeated. An export of the name and dtype that the server has
        written by then is the answer if it has the model's lineage and step; one that is still being written is waited for.
        Any other of the name is the error EXPORT_EXISTS, as it is without a loss.

        name        a name that no export has, no path
        dtype       "float32", "bfloat16", "float16", "float64", or short "fp32", "bf16", "fp16", "fp64"; None: each tensor's own
                    in the loaded files
        timeout_s   how long to wait for it; TimeoutError after it. The server may go on and write it. None: as long as it takes
        """
        request = _proto.ExportWeightsRequest(name=config.checked_text("name", name),
                                              **({} if dtype is None else {"dtype": config.checked_text("dtype", dtype)}))
        self._pin(request)
        what = f"export {name!r}, which may go on at the server"
        with in_time(timeout_s, what) as deadline:
            lost, give_up = [], time.monotonic() + self._recovery_timeout_s
            while True:
                try:
                    return self._retrying(lambda timeout=None: self._written(request, lost, timeout), deadline)
                except errors.StemmaError as error:
                    if error.reason != "EXPORT_EXISTS" or not lost:
                        raise
                    if written := self._written_before(request, error.metadata, deadline):
                        return written
                    if "pending" not in error.metadata or time.monotonic() >= give_up:
                        raise
                    if is_over(deadline):
                        raise timed_out(what, timeout_s, error) from error
                time.sleep(self._retry_delay_s)  # it is being written

    def delete_export(self, name) -> None:
        """Removes an export, whoever wrote it; answers once its name is free. A rollout engine that still reads its files
        keeps those that it has open.

        name  the export's, no path
        """
        request = _proto.DeleteExportRequest(name=config.checked_text("name", name))
        self._deleting(lambda: self._stub.DeleteExport(request))

    def _written(self, request, lost, timeout):
        """Makes one try."""
        reply = self._noting_loss(lambda: self._stub.ExportWeights(request, timeout=timeout), lost)
        self._saw(reply.lineage, reply.step)
        return Export(reply.path, reply.step, reply.weight_version, reply.lineage, reply.bytes)

    def _written_before(self, request, written, deadline):
        """The Export that a lost try left, by what the server knows of the name; None where that is not what this request would
        write."""
        if "lineage" not in written or written["dtype"] != request.dtype:
            return None
        model = self._model(deadline)
        if (written["lineage"], written["step"]) != (model.lineage, str(model.step)):
            return None
        self._saw(model.lineage, model.step)
        return Export(written["path"], model.step, model.weight_version, model.lineage)
