"""An in-process gRPC server of TrainingService whose methods are Python functions; for tests of the client."""

from concurrent import futures

import grpc
from e2e.own_loopback import HOST
from stemma import _proto


class FakeServer:
    """handlers: {method name: function(request or iterator, context) -> response or iterator}. port: where it listens; 0: a free
    one. credentials: grpc.ServerCredentials; None: it speaks plaintext."""

    def __init__(self, handlers, port=0, credentials=None):
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        make = {(False, False): grpc.unary_unary_rpc_method_handler, (True, False): grpc.stream_unary_rpc_method_handler,
                (False, True): grpc.unary_stream_rpc_method_handler, (True, True): grpc.stream_stream_rpc_method_handler}
        rpcs = {name: make[(up, down)](handlers[name], request_deserializer=request.FromString,
                                       response_serializer=response.SerializeToString)
                for name, request, response, up, down in _proto.methods("stemma.v1.TrainingService") if name in handlers}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("stemma.v1.TrainingService", rpcs),))
        self.port = (self._server.add_insecure_port(f"{HOST}:{port}") if credentials is None else
                     self._server.add_secure_port(f"{HOST}:{port}", credentials))
        self.address = f"{HOST}:{self.port}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        self._server.stop(grace=None).wait()


def abort(context, code, message, reason="", fields=(), metadata=None, retry_delay_s=None):
    """Ends a call as the server does, details in grpc-status-details-bin."""
    status = _proto.RpcStatus(code=code.value[0], message=message)
    details = [_proto.ErrorInfo(reason=reason, domain="stemma", metadata=metadata or {})]
    if fields:
        bad = _proto.BadRequest()
        for field, description in fields:
            bad.field_violations.add(field=field, description=description)
        details.append(bad)
    if retry_delay_s is not None:
        retry = _proto.RetryInfo()
        retry.retry_delay.seconds = int(retry_delay_s)
        retry.retry_delay.nanos = round(retry_delay_s % 1 * 1e9)
        details.append(retry)
    for message_of_detail in details:
        status.details.add(type_url=f"type.googleapis.com/{message_of_detail.DESCRIPTOR.full_name}",
                           value=message_of_detail.SerializeToString())
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, message)


def verified(**fields):
    """An answer of VerifyGroup."""
    answer = _proto.message_class("stemma.v1.VerifyGroupResponse")(
        log_prob_error_max=2e-6, log_prob_error_mean=1e-6, log_prob_tokens=8, error_norm=0.5, gradient_norm=2.0,
        parameters=[{"name": "norm", "error_norm": 0.4, "gradient_norm": 1.6}, {"name": "bias", "error_norm": 0.3}, {"name": "still"}],
        **{"step": 3, "lineage": "a-1", **fields})
    answer.reuse.metrics["perf/actor/time_per_step"], answer.dense.metrics["perf/actor/time_per_step"] = 0.5, 2.0
    return answer
