"""The calls of TrainingService on a gRPC channel, one attribute per method."""

from . import _proto


class TrainingStub:
    def __init__(self, channel):
        kinds = {(False, False): channel.unary_unary, (True, False): channel.stream_unary,
                 (False, True): channel.unary_stream, (True, True): channel.stream_stream}
        for name, request, response, client_streams, server_streams in _proto.methods("stemma.v1.TrainingService"):
            call = kinds[(client_streams, server_streams)](
                f"/stemma.v1.TrainingService/{name}",
                request_serializer=request.SerializeToString, response_deserializer=response.FromString)
            setattr(self, name, call)
