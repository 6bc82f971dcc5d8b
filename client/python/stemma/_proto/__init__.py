"""The messages of `stemma.v1`, built at import from the embedded descriptors.

They live in a descriptor pool of their own, so they never clash with another package's copy of google.rpc or of an
older stemma. Works with every protobuf runtime since 3.20: nothing here is generated code.
"""

import base64

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from .descriptors import FILE_DESCRIPTOR_SET_BASE64

FILES = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(FILE_DESCRIPTOR_SET_BASE64))
POOL = descriptor_pool.DescriptorPool()
for _file in FILES.file:
    POOL.AddSerializedFile(_file.SerializeToString())


def message_class(full_name):
    descriptor = POOL.FindMessageTypeByName(full_name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return _factory.GetPrototype(descriptor)


_factory = None if hasattr(message_factory, "GetMessageClass") else message_factory.MessageFactory(POOL)

GroupPart = message_class("stemma.v1.GroupPart")
UpdateHeader = message_class("stemma.v1.UpdateHeader")
LogProbHeader = message_class("stemma.v1.LogProbHeader")
PromptGroup = message_class("stemma.v1.PromptGroup")
MoreRollouts = message_class("stemma.v1.MoreRollouts")
Rollout = message_class("stemma.v1.Rollout")
GetServerInfoRequest = message_class("stemma.v1.GetServerInfoRequest")
GetModelRequest = message_class("stemma.v1.GetModelRequest")
GetRequestRequest = message_class("stemma.v1.GetRequestRequest")
ListRequestsRequest = message_class("stemma.v1.ListRequestsRequest")
CancelRequestRequest = message_class("stemma.v1.CancelRequestRequest")
ReadResultsRequest = message_class("stemma.v1.ReadResultsRequest")
ExportWeightsRequest = message_class("stemma.v1.ExportWeightsRequest")
DeleteExportRequest = message_class("stemma.v1.DeleteExportRequest")
SaveCheckpointRequest = message_class("stemma.v1.SaveCheckpointRequest")
LoadCheckpointRequest = message_class("stemma.v1.LoadCheckpointRequest")
ListCheckpointsRequest = message_class("stemma.v1.ListCheckpointsRequest")
VerifyCheckpointRequest = message_class("stemma.v1.VerifyCheckpointRequest")
PinCheckpointRequest = message_class("stemma.v1.PinCheckpointRequest")
DeleteCheckpointRequest = message_class("stemma.v1.DeleteCheckpointRequest")
RpcStatus = message_class("google.rpc.Status")
ErrorInfo = message_class("google.rpc.ErrorInfo")
BadRequest = message_class("google.rpc.BadRequest")
RetryInfo = message_class("google.rpc.RetryInfo")


def enum_number(full_name, name):
    """The number of an enum value by its name, any case; ValueError names the choices."""
    values = POOL.FindEnumTypeByName(full_name).values_by_name
    value = values.get(str(name).upper())
    if value is None or value.number == 0:
        choices = ", ".join(v.name for v in values.values() if v.number != 0)
        raise ValueError(f"{name!r} is none of {choices}")
    return value.number


def methods(service_name):
    """(name, request class, response class, client streams, server streams) of each method of a service."""
    package, _, short = service_name.rpartition(".")
    for file in FILES.file:
        for service in file.service:
            if file.package == package and service.name == short:
                for m in service.method:
                    yield (m.name, message_class(m.input_type[1:]), message_class(m.output_type[1:]),
                           m.client_streaming, m.server_streaming)


def to_dict(message):
    """Plain data: every scalar field without presence, set fields with it; enums by name, maps as dicts, bytes kept."""
    out = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            out[field.name] = dict(value)
        elif _is_repeated(field):
            out[field.name] = [_plain(field, item) for item in value]
        elif not _has_presence(field) or message.HasField(field.name):
            out[field.name] = _plain(field, value)
    return out


def _plain(field, value):
    if field.message_type is not None:
        return to_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value


def _is_repeated(field):
    new = getattr(field, "is_repeated", None)
    return new if isinstance(new, bool) else field.label == field.LABEL_REPEATED


def _is_map(field):
    return (field.message_type is not None and _is_repeated(field)
            and field.message_type.GetOptions().map_entry)


def _has_presence(field):
    return field.message_type is not None or field.containing_oneof is not None
