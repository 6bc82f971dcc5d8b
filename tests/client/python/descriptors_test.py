"""The embedded descriptors are those of proto/."""

import importlib.util
import pathlib

from google.protobuf import descriptor_pb2
from stemma import _proto

ROOT = pathlib.Path(__file__).resolve().parents[3]


def compiled():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "client" / "python" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    return descriptor_pb2.FileDescriptorSet.FromString(generate.compile_descriptors())


def without_well_known_options(files):
    """Our own files by name: google/protobuf's carry options of the protoc that was used."""
    return {f.name: f for f in files.file if not f.name.startswith("google/protobuf/")}


def test_embedded_descriptors_are_those_of_the_proto_folder():
    expected, embedded = without_well_known_options(compiled()), without_well_known_options(_proto.FILES)
    assert expected.keys() == embedded.keys()
    for name in expected:
        assert embedded[name] == expected[name], f"{name} changed: run client/python/generate.py"


def test_a_changed_proto_is_noticed():
    changed = without_well_known_options(compiled())["stemma/v1/training.proto"]
    changed.message_type[0].field[0].number += 100
    assert without_well_known_options(_proto.FILES)["stemma/v1/training.proto"] != changed


def test_the_pool_is_private():
    """Another package may register google.rpc or stemma.v1 in the default pool."""
    from google.protobuf import descriptor_pool

    try:
        found = descriptor_pool.Default().FindMessageTypeByName("stemma.v1.GroupPart")
    except KeyError:
        found = None
    assert found is None


def test_every_method_of_the_service_has_a_stub():
    from e2e.own_loopback import channel_to
    from stemma._stub import TrainingStub

    channel = channel_to("127.0.0.1:1")
    stub = TrainingStub(channel)
    names = [m[0] for m in _proto.methods("stemma.v1.TrainingService")]
    assert "UpdateActor" in names and "ComputeLogProb" in names
    assert all(callable(getattr(stub, name)) for name in names)
    channel.close()
