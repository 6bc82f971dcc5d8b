"""The calls of TrainingService on a gRPC channel, one attribute per method."""

from . import _proto, _tries


class TrainingStub:
    """Its calls are gRPC's, but that those of a thread which makes tries for another one end when that is interrupted."""

    def __init__(self, channel):
        kinds = {(False, False): channel.unary_unary, (True, False): channel.stream_unary,
                 (False, True): channel.unary_stream, (True, True): channel.stream_stream}
        for name, request, response, client_streams, server_streams in _proto.methods("stemma.v1.TrainingService"):
            call = kinds[(client_streams, server_streams)](
                f"/stemma.v1.TrainingService/{name}",
                request_serializer=request.SerializeToString, response_deserializer=response.FromString)
            setattr(self, name, _Call(call, server_streams))


class _Call:
    def __init__(self, call, streams_answer):
        self._call, self._streams_answer = call, streams_answer

    def __call__(self, request, **options):
        run = _tries.current()
        if run is None:
            return self._call(request, **options)
        if self._streams_answer:
            return run.hold(self._call(request, **options))
        return run.hold(self._call.future(request, **options)).result()

    def __getattr__(self, name):
        return getattr(self._call, name)


class CancellableStub:
    """What a coroutine asks of a TrainingStub, call after call in threads, so that cancelling its task ends the call under way.

    Thread safety: one thread at a time makes calls; cancel() may come from any. answer_s, how long an answer may take where
    the caller names no timeout, is set between calls.
    """

    def __init__(self, stub, answer_s):
        self.answer_s = answer_s
        self._stub, self._call, self._cancelled = stub, None, False

    def GetRequest(self, request, timeout=None):
        return self._held(self._stub.GetRequest.future(request, timeout=timeout or self.answer_s)).result()

    def GetModel(self, request, timeout=None):
        return self._held(self._stub.GetModel.future(request, timeout=timeout or self.answer_s)).result()

    def ReadResults(self, request, timeout=None):
        """Has no answer_s: a stream takes as long as its messages do."""
        return self._held(self._stub.ReadResults(request, timeout=timeout))

    def cancel(self):
        """Ends the call under way, and each one made later."""
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()

    def _held(self, call):
        self._call = call
        if self._cancelled:  # since before the call was there to be cancelled
            call.cancel()
        return call
