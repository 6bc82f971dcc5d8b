"""What the server refused, in its own words."""

from typing import Dict, List, Optional, Tuple

import grpc

from . import _proto

# Reasons of a server that is there, and serves as soon as its workers have loaded the weights.
LOADING = frozenset({"STARTING", "RECOVERING"})


class StemmaError(Exception):
    """A call that failed.

    code        gRPC code by name, e.g. "INVALID_ARGUMENT"
    reason      Stemma's name for the cause, e.g. "SHORT_STREAM"; "" if the failure is not the server's (no connection)
    message     what, which value, what to do
    fields      [(field path, description)], one for each problem of the request
    uid         the prompt group concerned, or ""
    metadata    further values by name (e.g. step, lineage, bytes); steps_applied and steps_total where a request failed that had
                been accepted: steps that were applied before the failure are not taken back by it
    retry_after_s   the server's own advice, or None
    """

    code: str
    reason: str
    message: str
    fields: List[Tuple[str, str]]
    uid: str
    metadata: Dict[str, str]
    retry_after_s: Optional[float]

    def __init__(self, code, reason, message, fields=(), uid="", metadata=None, retry_after_s=None):
        self.code, self.reason, self.message = code, reason, message
        self.fields, self.uid = list(fields), uid
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s
        super().__init__(self._text())

    def __reduce__(self):
        """Errors cross processes whole: pools pickle them."""
        return type(self), (self.code, self.reason, self.message, self.fields, self.uid, self.metadata, self.retry_after_s)

    def _text(self):
        head = f"{self.code} {self.reason}".strip()
        unsaid = [(field, text) for field, text in self.fields if not self._says(field, text)]
        if [text for _, text in unsaid] == [self.message]:
            return f"{head}: {unsaid[0][0]}: {self.message}"
        return "\n".join([f"{head}: {self.message}", *(f"  {field}: {text}" for field, text in unsaid)])

    def _says(self, field, text):
        """Whether the message has this problem and its field: other fields may have the same one."""
        is_path = "." in field and field in self.message
        return f"{field} {text}" in self.message or (text == self.message and (is_path or text.startswith(f"{field} ")))


class RequestInterrupted(KeyboardInterrupt):
    """Ctrl-C while a request was sent or waited for.

    request_id  the request
    state       None: it was left to go on. Else what cancelling it found: "CANCELLED", or "DONE" if it was too late, a
                state under way (the step that runs is finished first), or "" if the server did not know it or answer
    accepted    whether the server had said that it took the request
    """

    request_id: str
    state: Optional[str]
    accepted: bool

    def __init__(self, request_id, state=None, accepted=True):
        self.request_id, self.state, self.accepted = request_id, state, accepted
        super().__init__(self._text())

    def __reduce__(self):
        return type(self), (self.request_id, self.state, self.accepted)

    def _text(self):
        again = f"client.attach({self.request_id!r})"
        if not self.accepted and not self.state:
            return (f"request {self.request_id} was being sent: the server may have taken it, and then it goes on there. To find "
                    f"out: {again}; to send it again: the same request_id")
        if self.state is None:
            return (f"request {self.request_id} goes on at the server. To wait for it: {again}.result(); to end it: "
                    f"{again}.cancel(), or `stemma requests`. (update_actor(..., cancel_on_interrupt=True) cancels on Ctrl-C)")
        if self.state == "CANCELLED":
            return f"request {self.request_id} was cancelled; optimizer steps that were committed before stay"
        if not self.state:
            return f"request {self.request_id} may go on: the server did not answer the cancel. To ask again: {again}.cancel()"
        return f"request {self.request_id} was to be cancelled and is {self.state}; see {again}.status"


class LineageLostError(StemmaError):
    """The weights that were trained are gone: their worker or server died (reasons ROLLED_BACK and LINEAGE_MISMATCH).

    lost_lineage, lost_step     the weights that are gone, and the step they had reached; None where nobody knows it
    lineage, step               the weights that the server has now
    """

    @property
    def lost_lineage(self) -> str:
        return self.metadata.get("lost_lineage") or self.metadata.get("expected_lineage", "")

    @property
    def lost_step(self) -> Optional[int]:
        return _int_or_none(self.metadata.get("lost_step"))

    @property
    def lineage(self) -> str:
        return self.metadata.get("lineage", "")

    @property
    def step(self) -> Optional[int]:
        return _int_or_none(self.metadata.get("step"))


def _int_or_none(text):
    return int(text) if text else None


def _class_of(reason):
    return LineageLostError if reason in ("ROLLED_BACK", "LINEAGE_MISMATCH") else StemmaError


# What gRPC itself answers without a word.
_SAID_BY_GRPC = {grpc.StatusCode.UNIMPLEMENTED:
                 "the server does not know this call, or cannot read it: it may be older than this client"}


def from_rpc_error(error):
    """A StemmaError of a grpc.RpcError, with the details that the server attached."""
    info, fields, retry_after_s = {}, [], None
    reason, named = "", None
    for detail in _details(error):
        kind = detail.type_url.rpartition("/")[2]
        if kind == "google.rpc.ErrorInfo":
            message = _proto.ErrorInfo.FromString(detail.value)
            reason, info = message.reason, dict(message.metadata)
            named = info.get("field")
        elif kind == "google.rpc.BadRequest":
            message = _proto.BadRequest.FromString(detail.value)
            fields += [(v.field, v.description) for v in message.field_violations]
        elif kind == "google.rpc.RetryInfo":
            delay = _proto.RetryInfo.FromString(detail.value).retry_delay
            retry_after_s = delay.seconds + delay.nanos * 1e-9
    if named and not fields:  # one problem, which is the message
        fields = [(named, error.details() or "")]
    message = error.details() or _SAID_BY_GRPC.get(error.code(), "")
    return _class_of(reason)(error.code().name, reason, message, fields, info.get("uid", ""), info, retry_after_s)


def from_failure(status):
    """A StemmaError of the failure that a request's status carries. It says how many steps had been applied, unless the server
    does or their weights are lost."""
    failure, applied, total = status.failure, status.steps_applied, status.steps_total
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    kind, message = _class_of(failure.reason), failure.message
    if applied and kind is StemmaError and f"{applied} of {total} steps" not in message:
        message += f"; {applied} of {total} steps of the request were applied before"
    return kind(names.get(failure.code, "UNKNOWN"), failure.reason, message,
                [(failure.field, message)] if failure.field else [], failure.uid,
                {**failure.metadata, "category": failure.category, "steps_applied": str(applied), "steps_total": str(total)})


def _details(error):
    for key, value in (error.trailing_metadata() or ()):
        if key == "grpc-status-details-bin":
            return _proto.RpcStatus.FromString(value).details
    return ()
