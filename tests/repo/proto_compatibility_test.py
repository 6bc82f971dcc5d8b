"""A client that was built once goes on working: what the wire had, it keeps."""

import proto_shape
import source_tree

_PROTO = """syntax = "proto3";
package stemma.v1;
service S {
  rpc Get(A) returns (A);
  rpc Send(stream A) returns (A);
}
message A {
  enum State { IDLE = 0; BUSY = 1; }
  string name = 1;
  repeated uint32 counts = 2;
  optional double reward = 3;
  map<string, double> metrics = 4;
  oneof part { string text = 5; bytes raw = 6; }
  State state = 7;
  B b = 8;
}
message B { message C { int64 x = 1; } C c = 1; }
"""


def _shape(folder, text):
    file = folder / "stemma" / "v1" / "a.proto"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return proto_shape.shape(proto_shape.compile_files(folder))


def test_the_wire_keeps_what_it_had():
    now = proto_shape.shape(proto_shape.compile_files(source_tree.ROOT / "proto"))
    published = proto_shape.BASELINE.read_text().splitlines()
    source_tree.assert_none(proto_shape.changed_or_gone(published, now))
    source_tree.assert_none([f"new, run tests/repo/proto_shape.py: {line}" for line in now if line not in set(published)])


def test_every_kind_of_change_is_noticed(tmp_path):
    published = _shape(tmp_path, _PROTO)
    for before, after in (("  string name = 1;\n", ""),                                  # gone
                          ("string name = 1", "string name = 9"),                        # renumbered
                          ("string name = 1", "string title = 1"),                       # renamed
                          ("string name = 1", "bytes name = 1"),                         # another type
                          ("B b = 8", "A b = 8"),                                        # another message
                          ("repeated uint32 counts", "uint32 counts"),                   # cardinality
                          ("optional double reward", "double reward"),                   # presence
                          ("map<string, double> metrics", "map<string, float> metrics"),  # a map's value
                          ("oneof part { string text = 5; bytes raw = 6; }", "string text = 5; bytes raw = 6;"),
                          ("BUSY = 1", "BUSY = 2"), ("message C { int64 x = 1; }", "message C { int32 x = 1; }"),
                          ("  rpc Get(A) returns (A);\n", ""), ("rpc Get(A)", "rpc Get(B)"),
                          ("rpc Send(stream A)", "rpc Send(A)"), ("rpc Get(A) returns (A)", "rpc Get(A) returns (stream A)"),
                          ("package stemma.v1", "package stemma.v2")):
        assert before in _PROTO
        assert proto_shape.changed_or_gone(published, _shape(tmp_path, _PROTO.replace(before, after))), after


def test_an_addition_is_no_change(tmp_path):
    published = _shape(tmp_path, _PROTO)
    added = _shape(tmp_path, _PROTO.replace("  B b = 8;\n", "  B b = 8;\n  string more = 9;\n") + "message D {}\n")
    assert not proto_shape.changed_or_gone(published, added) and len(added) == len(published) + 2
