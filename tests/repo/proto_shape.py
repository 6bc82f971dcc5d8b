"""The wire as lines of text, one per field, enum value and method. What was once published stays: proto_baseline.txt holds
it, and a line may be added to it but never change or go.

    python tests/repo/proto_shape.py     adds what is new in proto/ to the baseline; refuses if anything changed or went
"""

import pathlib
import sys
import tempfile

from google.protobuf import descriptor_pb2
import grpc_tools
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASELINE = ROOT / "tests" / "repo" / "proto_baseline.txt"
_PRESENCE = {1: "single", 2: "required", 3: "repeated"}


def compile_files(folder):
    """The FileDescriptorSet of the .proto files of stemma/ under `folder`."""
    folder = pathlib.Path(folder)
    files = sorted(str(p.relative_to(folder)) for p in folder.glob("stemma/**/*.proto"))
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "set.bin"
        status = protoc.main(["protoc", f"-I{folder}", f"-I{well_known}", f"--descriptor_set_out={out}", *files])
        assert status == 0, "protoc failed"
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _field(scope, field, message):
    kind = field.type_name or descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    presence = "optional" if field.proto3_optional else _PRESENCE[field.label]
    place = ""
    if field.HasField("oneof_index") and not field.proto3_optional:
        place = f" in {message.oneof_decl[field.oneof_index].name}"
    return f"field {scope}.{field.name} = {field.number} {presence} {kind}{place}"


def _enum(scope, enum):
    return [f"value {scope}.{enum.name}.{value.name} = {value.number}" for value in enum.value]


def _message(scope, message):
    name = f"{scope}.{message.name}"
    lines = [f"message {name}"] + [_field(name, field, message) for field in message.field]
    for nested in message.nested_type:
        lines += _message(name, nested)
    for enum in message.enum_type:
        lines += _enum(name, enum)
    return lines


def shape(files):
    lines = []
    for file in files.file:
        for message in file.message_type:
            lines += _message(file.package, message)
        for enum in file.enum_type:
            lines += _enum(file.package, enum)
        for service in file.service:
            for method in service.method:
                asks = "stream " * method.client_streaming + method.input_type
                answers = "stream " * method.server_streaming + method.output_type
                lines.append(f"method {file.package}.{service.name}.{method.name} ({asks}) -> ({answers})")
    return sorted(lines)


def changed_or_gone(published, now):
    return [f"published, but not so in proto/ any more: {line}" for line in published if line not in set(now)]


def main():
    now = shape(compile_files(ROOT / "proto"))
    published = BASELINE.read_text().splitlines() if BASELINE.exists() else []
    problems = changed_or_gone(published, now)
    if problems:
        sys.exit("\n".join(problems))
    BASELINE.write_text("\n".join(now) + "\n")
    print(f"{len(now) - len(published)} new lines in {BASELINE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
