"""The call of a Client that writes the weights out."""

import time

from . import _proto, config, errors


class ExportCalls:
    """What Client inherits; its retries, its lineage and its stub are Client's."""

    def export(self, name, dtype=None):
        """Writes the current weights as a Hugging Face directory <data>/exports/<name>; returns its path.

        Where the connection is lost meanwhile, the call is repeated. An export of the name and dtype that the server has
        written by then is the answer if it has the model's lineage and step; one that is still being written is waited for.
        Any other of the name is the error EXPORT_EXISTS, as it is without a loss.

        name        a name that was not used before, no path
        dtype       "float32", "bfloat16", "float16", "float64"; None: each tensor's own in the loaded files
        """
        request = _proto.ExportWeightsRequest(name=config.checked_text("name", name),
                                              **({} if dtype is None else {"dtype": config.checked_text("dtype", dtype)}))
        self._pin(request)
        lost = []

        def write():
            reply = self._noting_loss(lambda: self._stub.ExportWeights(request), lost)
            self._saw(reply.lineage, reply.step)
            return reply.path

        give_up = time.monotonic() + self._recovery_timeout_s
        while True:
            try:
                return self._retrying(write)
            except errors.StemmaError as error:
                if error.reason != "EXPORT_EXISTS" or not lost:
                    raise
                if self._is_written(request, error.metadata):
                    return error.metadata["path"]
                if "pending" not in error.metadata or time.monotonic() >= give_up:
                    raise
            time.sleep(self._retry_delay_s)  # it is being written

    def _is_written(self, request, written):
        """Whether what the server knows of the export that it has written is what this request would write."""
        if "lineage" not in written or written["dtype"] != request.dtype:
            return False
        model = self._retrying(lambda: self._stub.GetModel(_proto.GetModelRequest()))
        same = (written["lineage"], written["step"]) == (model.lineage, str(model.step))
        if same:
            self._saw(model.lineage, model.step)
        return same
