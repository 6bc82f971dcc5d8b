"""How long a request is waited for while the server has no workers to run it. Private to this package."""

import logging
import time

from . import _proto, errors

_LOG = logging.getLogger("stemma")
_AWAY = ("LOADING", "RECOVERING")


class Recovery:
    """Looks at a server that keeps a request waiting, for one Future: whether it serves, and since when it does not."""

    def __init__(self, client, request_id):
        self._client, self._request_id, self._since = client, request_id, None

    def look(self, deadline, stub):
        """Asks how the server is; yields as Client._steps. Logs once what is waited for; raises the StemmaError RECOVERING when
        it has not served for recovery_timeout_s. The request goes on all the same, when its workers come."""
        try:
            model = yield from self._client._ask_for_model(deadline, stub)
        except errors.StemmaError as error:
            if error.code != "UNIMPLEMENTED":  # of a server that cannot say it
                raise
            return
        if _proto.to_dict(model)["state"] not in _AWAY:
            self._since = None
            return
        limit_s = self._client._recovery_timeout_s
        if self._since is None:
            self._since = time.monotonic()
            _LOG.warning("request %s waits for the server at %s, for at most %.0f s: %s", self._request_id,
                         self._client._connection.address, limit_s, model.state_reason)
        if time.monotonic() >= self._since + limit_s:
            self._since = None
            error = errors.StemmaError("UNAVAILABLE", "RECOVERING", f"the server has not served for {limit_s:.0f} s, and has request "
                                       f"{self._request_id}, which runs when it does: attach waits for it again ({model.state_reason})")
            error.request_id = self._request_id
            raise error
