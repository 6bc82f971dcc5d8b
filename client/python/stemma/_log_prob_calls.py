"""The calls of a Client that ask for log-probs."""

from typing import Dict

from . import _proto, _tries, config, results
from ._tries import in_time
from .groups import as_list, parts as encode


class LogProbCalls:
    """What Client inherits; its retries, its lineage and its stub are Client's."""

    def log_probs(self, groups, temperature=1.0, entropy=False, weights="policy", schedule=None, *, timeout_s=None) -> Dict[str, results.RolloutLogProbs]:
        """{rollout_id: RolloutLogProbs} of the responses under the current weights, or a checkpoint's. An empty response has no
        entry. The current weights are those after the requests that were accepted before: it waits for them.

        groups      as in submit; only tokens are read
        temperature     divides the logits. For log-probs that an update is to read as old or reference ones: the same as its
                        loss's `temperature`, else every ratio is wrong
        entropy     whether entropies come too
        weights     "policy", or the name of a checkpoint, with or without "checkpoint:" before it
        schedule    "auto", "reuse", "dense"; None: the server's
        timeout_s   how long to wait for them; TimeoutError after it, and the server computes no further. None: as long as it
                    takes
        """
        header = config.fill_message(_proto.LogProbHeader(), {
            "request": config.without_none({"request_id": config.new_id(), "schedule": schedule}),
            "weights": config.weights(weights), "temperature": temperature, "entropy": entropy})
        self._pin(header.request)
        groups = as_list(groups)
        parts = encode("log_prob", header, groups)
        with in_time(timeout_s, "a log-prob pass") as deadline:
            out = self._sent(parts, groups, lambda timeout=None: results.log_probs(
                self._stub.ComputeLogProb(iter(parts), timeout=timeout)), deadline)
        for lineage in {rollout.lineage for rollout in out.values()}:
            self._saw(lineage)
        return out

    def read_log_probs(self, request_id) -> Dict[str, results.RolloutLogProbs]:
        """{rollout_id: RolloutLogProbs} of a finished request that was sent with return_log_probs. A rollout without an unmasked
        token has no entry. The error REQUEST_ID_EXPIRED says that they are no longer kept, or the request's outcome neither.

        request_id  the request's
        """
        return _tries.run(self._read_log_probs(request_id))

    def _read_log_probs(self, request_id, deadline=None, stub=None):
        """Yields as Client._steps. stub: makes the calls; None: this client's."""
        stub = stub or self._stub
        request = _proto.ReadResultsRequest(request_id=config.checked_text("request_id", request_id))
        return self._about(request_id, lambda timeout=None: results.log_probs(stub.ReadResults(request, timeout=timeout)),
                           deadline=deadline, stub=stub)
