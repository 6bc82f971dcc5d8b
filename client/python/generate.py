#!/usr/bin/env python3
"""Writes stemma/_proto/descriptors.py from proto/. Run it after a change of proto/; a test compares the two.

Needs grpcio-tools (for its protoc). Only descriptors are kept, no generated code: the client builds its message classes
from them at import, so it works with whatever protobuf runtime a user has.
"""

import base64
import pathlib
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent
PROTO = ROOT.parent.parent / "proto"
OUT = ROOT / "stemma" / "_proto" / "descriptors.py"
FILES = ["stemma/v1/training.proto", "google/rpc/status.proto", "google/rpc/error_details.proto"]


def compile_descriptors(proto_dir=PROTO):
    """The serialized FileDescriptorSet of FILES and all they import."""
    import grpc_tools
    from grpc_tools import protoc

    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "set.bin"
        status = protoc.main(["protoc", f"-I{proto_dir}", f"-I{well_known}", "--include_imports",
                              f"--descriptor_set_out={out}", *FILES])
        if status != 0:
            sys.exit("protoc failed")
        return out.read_bytes()


def main():
    lines = textwrap.wrap(base64.b64encode(compile_descriptors()).decode(), 110)
    body = "\n".join(f'    "{line}"' for line in lines)
    OUT.write_text('"""Written by client/python/generate.py from proto/; do not edit."""\n\n'
                   f"FILE_DESCRIPTOR_SET_BASE64 = (\n{body}\n)\n")


if __name__ == "__main__":
    main()
