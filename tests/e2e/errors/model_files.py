"""A model directory's files spoiled one mistake at a time, for the tests of what a start refuses.

CASES: [(name, function of the directory, words that the message must hold besides the file's name, file)].
"""

import json
import os
import struct

SINGLE, INDEX, SHARD = "model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"
NORM_SHARD, CONFIG = "model-00002-of-00002.safetensors", "config.json"
HEADER_LIMIT = 100_000_000
NORM = "model.norm.weight"


def read_parts(path):
    """(header as an object, data)"""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def write_parts(path, header, data):
    """`header`: an object, or its bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def with_tensor(name=NORM, **fields):
    """One tensor's entry changed; a field of None is removed."""
    def spoil(directory):
        header, data = read_parts(directory / SINGLE)
        entry = {**header[name], **fields}
        header[name] = {key: value for key, value in entry.items() if value is not None}
        write_parts(directory / SINGLE, header, data)
    return spoil


def with_header(edit):
    """`edit`: (header object, data) -> (header object or bytes, data)."""
    def spoil(directory):
        write_parts(directory / SINGLE, *edit(*read_parts(directory / SINGLE)))
    return spoil


def with_length(length):
    """The length field alone lies; a `length` of the whole file's size is one beyond what fits."""
    def spoil(directory):
        raw = (directory / SINGLE).read_bytes()
        (directory / SINGLE).write_bytes(struct.pack("<Q", length(len(raw))) + raw[8:])
    return spoil


def moved(by, what):
    """The tensor that starts last, moved: a hole before it or an overlap with its neighbour, spans unchanged."""
    def edit(header, data):
        entry = header[last_tensor(header)]
        entry["data_offsets"] = [offset + by for offset in entry["data_offsets"]]
        return header, data + bytes(by) if by > 0 else data[:by]
    return with_header(edit), [what]


def last_tensor(header):
    return max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"][0])


def repeated_tensor(header, data):
    text = json.dumps(header)
    return (text[:-1] + f", {json.dumps(NORM)}: {json.dumps(header[NORM])}}}").encode(), data


def repeated_field(header, data):
    text = json.dumps(header)
    entry = json.dumps(header[NORM])
    return text.replace(entry, entry[:-1] + ', "dtype": "F32"}').encode(), data


def renamed(header, data):
    header["model.norm.wieght"] = header.pop(NORM)
    return header, data


def dropped(header, data):
    """The last tensor goes with its data, so that only the model misses it."""
    begin = header.pop(last_tensor(header))["data_offsets"][0]
    return header, data[:begin]


def fitting_shape(header, data):
    """As many bytes in another shape: sound for the format, wrong for the model."""
    header[NORM]["shape"] = [2, header[NORM]["shape"][0] // 2]
    return header, data


def integers(header, data):
    header[NORM]["dtype"] = "I32"
    return header, data


def not_utf8(header, data):
    return json.dumps(header).encode().replace(b"norm", b"n\xff\xferm", 1), data


padded = with_header(lambda header, data: (json.dumps(header).encode() + b"   ", data))  # allowed


def above_limit(directory):
    """A sparse file large enough for the header that it announces."""
    (directory / SINGLE).write_bytes(struct.pack("<Q", HEADER_LIMIT + 1) + b"{}")
    os.truncate(directory / SINGLE, HEADER_LIMIT + 1024)


def cut(to):
    def spoil(directory):
        os.truncate(directory / SINGLE, to if to >= 0 else (directory / SINGLE).stat().st_size + to)
    return spoil


def fifo(directory):
    (directory / SINGLE).unlink()
    os.mkfifo(directory / SINGLE)


def folder(directory):
    (directory / SINGLE).unlink()
    (directory / SINGLE).symlink_to(directory, target_is_directory=True)


def dangling_link(directory):
    (directory / SINGLE).unlink()
    (directory / SINGLE).symlink_to("gone.safetensors")


HEADER_CASES = [
    ("seven bytes", cut(7), ["at least 8"]),
    ("an empty file", cut(0), ["at least 8"]),
    ("a header length beyond the file", with_length(lambda size: size - 7), ["header length", "does not fit"]),
    ("a header length above the limit", above_limit, ["header length", "limit"]),
    ("a header length of all ones", with_length(lambda size: 2**64 - 1), ["header length", "limit"]),
    ("a header of no bytes", with_header(lambda header, data: (b"", data)), ["header"]),
    ("a header that is a list", with_header(lambda header, data: (b"[1]", data)), ["header"]),
    ("a header that ends early", with_length(lambda size: 40), ["header", "not JSON"]),
    ("bytes after the header's object", with_header(lambda header, data: (json.dumps(header).encode() + b"{}", data)),
     ["header", "not JSON"]),
    ("a zero byte in the header", with_header(lambda header, data: (json.dumps(header).encode() + b"\0", data)),
     ["header", "zero byte"]),
    ("a name that is not UTF-8", with_header(not_utf8), ["header", "UTF-8"]),
    ("a nested bomb", with_header(lambda header, data: (b'{"t":' + b"[" * 1_000_000, data)), ["header", "nested deeper"]),
    ("a nested bomb of objects", with_header(lambda header, data: (b'{"t":' * 200_000, data)), ["header", "nested deeper"]),
    ("metadata that are no strings", with_header(lambda header, data: ({**header, "__metadata__": {"step": 1}}, data)),
     ["__metadata__", "step"]),
    ("metadata that are no object", with_header(lambda header, data: ({**header, "__metadata__": "pt"}, data)),
     ["__metadata__"]),
]

TENSOR_CASES = [
    ("a tensor twice", with_header(repeated_tensor), [NORM, "appears twice"]),
    ("a field twice", with_header(repeated_field), ["dtype", "appears twice"]),
    ("an entry that is no object", with_header(lambda header, data: ({**header, NORM: 7}, data)), [NORM, "not an object"]),
    ("a field of another format", with_tensor(strides=[1]), [NORM, "strides"]),
    ("an unknown dtype", with_tensor(dtype="F33"), [NORM, "dtype", "F33"]),
    ("a dtype that is no string", with_tensor(dtype=32), [NORM, "dtype"]),
    ("a dtype of half a byte", with_tensor(dtype="F4"), [NORM, "dtype", "F4"]),
    ("no dtype", with_tensor(dtype=None), [NORM, "dtype is missing"]),
    ("no shape", with_tensor(shape=None), [NORM, "shape is missing"]),
    ("no offsets", with_tensor(data_offsets=None), [NORM, "data_offsets is missing"]),
    ("a negative size", with_tensor(shape=[-16]), [NORM, "shape", "-16"]),
    ("a size with a fraction", with_tensor(shape=[16.0]), [NORM, "shape"]),
    ("a size beyond 63 bits", with_tensor(shape=[2**63]), [NORM, "shape"]),
    ("a shape whose product overflows", with_tensor(shape=[2**32, 2**32]), [NORM, "shape", "overflows"]),
    ("a shape whose bytes overflow", with_tensor(shape=[2**62]), [NORM, "shape", "overflows"]),
    ("a shape of too many dimensions", with_tensor(shape=[16] + [1] * 64), [NORM, "65 dimensions"]),
    ("a shape that its offsets do not span", with_tensor(shape=[17]), [NORM, "data_offsets", "shape"]),
    ("offsets that are no integers", with_tensor(data_offsets=["0", "64"]), [NORM, "data_offsets"]),
    ("a negative offset", with_tensor(data_offsets=[-64, 0]), [NORM, "data_offsets"]),
    ("three offsets", with_tensor(data_offsets=[0, 32, 64]), [NORM, "data_offsets"]),
    ("an offset beyond 64 bits", with_tensor(data_offsets=[0, 2**64]), [NORM, "data_offsets"]),
    ("an end before its begin", with_tensor(data_offsets=[128, 64]), [NORM, "data_offsets", "before begin"]),
    ("offsets that wrap around", with_tensor(data_offsets=[2**64 - 64, 0]), [NORM, "data_offsets"]),
    ("a hole between tensors", *moved(4, "hole")),
    ("tensors that overlap", *moved(-4, "overlap")),
    ("truncated data", cut(-1), ["truncated"]),
    ("trailing data", with_header(lambda header, data: (header, data + b"x")), ["trailing data"]),
    ("a tensor that the model lacks", with_header(renamed), ["model.norm.wieght"]),
    ("a tensor that is missing", with_header(dropped), ["is missing"]),
    ("a shape that is not the model's", with_header(fitting_shape), [NORM, "shape"]),
    ("integers for weights", with_header(integers), [NORM, "dtype", "I32"]),
    ("a fifo in place of the weights", fifo, ["not a regular file"]),
    ("a link to a folder in place of the weights", folder, ["not a regular file"]),
    ("a link to nowhere in place of the weights", dangling_link, []),
]


def shard(directory):
    """The single file as two shards and an index; returns the index."""
    header, data = read_parts(directory / SINGLE)
    names = sorted((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"][0])
    weight_map = {}
    for number, part in enumerate((names[:3], names[3:]), 1):
        file_name = f"model-0000{number}-of-00002.safetensors"
        begin, end = header[part[0]]["data_offsets"][0], header[part[-1]]["data_offsets"][1]
        entries = {name: {**header[name], "data_offsets": [offset - begin for offset in header[name]["data_offsets"]]}
                   for name in part}
        write_parts(directory / file_name, entries, data[begin:end])
        weight_map.update({name: file_name for name in part})
    (directory / SINGLE).unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index))
    return index


def with_index(edit):
    """`edit`: index object -> its text."""
    def spoil(directory):
        (directory / INDEX).write_bytes(edit(shard(directory)))
    return spoil


def with_weight_map(**changes):
    def edit(index):
        weight_map = {**index["weight_map"], **{NORM: changes["norm"]}}
        return json.dumps({**index, "weight_map": weight_map}).encode()
    return with_index(edit)


def without_norm(index):
    del index["weight_map"][NORM]
    return json.dumps(index).encode()


def of_another_shard(index):
    others = {file for file in index["weight_map"].values()} - {index["weight_map"][NORM]}
    index["weight_map"][NORM] = others.pop()
    return json.dumps(index).encode()


def with_unknown_tensor(index):
    index["weight_map"]["model.extra"] = index["weight_map"][NORM]
    return json.dumps(index).encode()


def without_a_shard(directory):
    shard(directory)
    (directory / SHARD).unlink()


def with_a_folder_for_a_shard(directory):
    without_a_shard(directory)
    (directory / SHARD).mkdir()


def with_a_cut_shard(directory):
    shard(directory)
    os.truncate(directory / SHARD, (directory / SHARD).stat().st_size - 1)


def with_a_huge_index(directory):
    shard(directory)
    os.truncate(directory / INDEX, HEADER_LIMIT + 1)


def with_config(text):
    return lambda directory: (directory / CONFIG).write_bytes(text)


def with_a_huge_config(directory):
    os.truncate(directory / CONFIG, (16 << 20) + 1)


CONFIG_CASES = [
    ("a config that is no JSON", with_config(b"{"), ["not JSON"]),
    ("a config that is a list", with_config(b"[]"), ["object"]),
    ("a config that is not UTF-8", with_config(b'{"model_type": "\xff"}'), ["UTF-8"]),
    ("a config that is a nested bomb", with_config(b"[" * 1_000_000), ["nested deeper"]),
    ("a config with a key twice", with_config(b'{"model_type": "llama", "model_type": "llama"}'), ["appears twice"]),
    ("a config of more than 16 MiB", with_a_huge_config, ["limit"]),
]
NORM_FIELD = 'weight_map["model.norm.weight"]'
INDEX_CASES = [
    *((f"an index that names {name!r}", with_weight_map(norm=name), [NORM_FIELD])
      for name in ("../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "a\0b", "x" * 200)),
    ("an index value that is no string", with_weight_map(norm=3), [NORM_FIELD, "not a string"]),
    ("an index that is no JSON", with_index(lambda index: b'{"weight_map": {'), ["not JSON"]),
    ("an index that is a list", with_index(lambda index: b"[]"), ["not an object"]),
    ("an index that is not UTF-8", with_index(lambda index: b'{"weight_map": {"\xff": "a"}}'), ["UTF-8"]),
    ("an index that is a nested bomb", with_index(lambda index: b'{"a":' * 200_000), ["nested deeper"]),
    ("an index with a key twice", with_index(lambda index: b'{"weight_map": {"a": "b", "a": "c"}}'), ["appears twice"]),
    ("an index without its map", with_index(lambda index: b"{}"), ["weight_map", "missing"]),
    ("an index with an empty map", with_index(lambda index: b'{"weight_map": {}}'), ["weight_map", "empty"]),
    ("an index of more than 100 MB", with_a_huge_index, ["limit"]),
    ("an index with a tensor that its shard lacks", with_index(with_unknown_tensor), ['weight_map["model.extra"]']),
]
SHARD_CASES = [
    ("an index without a tensor of a shard", with_index(without_norm), [NORM, "is not in", INDEX], NORM_SHARD),
    ("an index with a tensor in another shard", with_index(of_another_shard), [NORM, "another file", INDEX], NORM_SHARD),
    ("a shard that is missing", without_a_shard, [], SHARD),
    ("a shard that is a folder", with_a_folder_for_a_shard, ["not a regular file"], SHARD),
    ("a shard that is cut", with_a_cut_shard, ["truncated"], SHARD),
]

CASES = [*((*case, SINGLE) for case in HEADER_CASES + TENSOR_CASES), *((*case, INDEX) for case in INDEX_CASES), *SHARD_CASES,
         *((*case, CONFIG) for case in CONFIG_CASES)]
