"""One planted fault for each check of the reader, and good files beside them."""

import os
import struct

import gguf_bytes as g
import pytest

from strata.errors import ModelFileError
from strata.gguf import TensorType, open_model

U64 = struct.Struct("<Q").pack
F32, Q8_0, Q2_0, Q4_K = TensorType.F32, TensorType.Q8_0, TensorType.Q2_0, TensorType.Q4_K
HEAD = 24  # bytes before the first entry


def one(name="a", ne=(8,), kind=F32, offset=0, data=bytes(32)):
    """A file of one tensor."""
    return g.model_bytes([], [g.record(name, ne, kind, offset)], data)


def two(first, second, size=64):
    """A file of two tensors of 8 floats."""
    return g.model_bytes([], [g.record("a", (8,), F32, first), g.record("b", (8,), F32, second)], bytes(size))


def meta(kind, payload, **more):
    return g.model_bytes([g.entry("k", kind, payload)], **more)


def nested(depth):
    payload = g.array(4, [1])
    for _ in range(depth - 1):
        payload = g.array(9, [payload])
    return payload


def aligned(value, kind=4):
    return g.model_bytes([g.entry("general.alignment", kind, g.scalar(kind, value))])


GOOD = {
    "one": one(),
    "two": two(0, 32),
    "reordered": two(32, 0),
    "gap": two(64, 0, 96),
    "alignment": aligned(64),
    "nesting": meta(9, nested(8)),
    "Q2_0 of 2 rows": one(ne=(128, 2), kind=Q2_0, data=bytes(72)),
}
KEY, VALUE = HEAD, HEAD + 8 + 1 + 4
DIMS = HEAD + 8 + 1 + 4
BAD = {
    "magic": (b"GGML" + one()[4:], r"magic at byte 0: is b'GGML', a GGUF file starts with b'GGUF'"),
    "short magic": (b"GG", "magic at byte 0: is b'GG'"),
    "no version": (b"GGUF\3", "version at byte 4: truncated: needs 8 bytes, the file has 5"),
    "version 1": (g.model_bytes(version=1), "version at byte 4: 1 is not supported"),
    "version 4": (g.model_bytes(version=4), "version at byte 4: 4 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), r"big-endian \(version 3\)"),
    "no counts": (one()[:12], "tensor count at byte 8: truncated"),
    "tensor count": (g.model_bytes(counts=(2**60, 0)), "tensor count at byte 8: 1152921504606846976 needs"),
    "tensor count by a little": (
        g.model_bytes(counts=(2, 0)),
        "tensor count at byte 8: 2 needs at least 50 more",
    ),
    "metadata count": (
        g.model_bytes(counts=(0, 2**60)),
        "metadata count at byte 16: 1152921504606846976 needs",
    ),
    "key length": (
        g.model_bytes([U64(2**63) + bytes(20)]),
        "length of metadata key 0 at byte 24: says 922337",
    ),
    "empty key": (g.model_bytes([g.entry("", 7, b"\0" * 9)]), "metadata key 0 at byte 24: takes 0 bytes"),
    "long key": (g.model_bytes([g.entry("k" * 65536, 7, b"\0")]), "takes 65536 bytes"),
    "key text": (g.model_bytes([g.entry(b"\xc3(", 7, b"\0" * 9)]), "metadata key 0 at byte 32: not UTF-8"),
    "same key": (
        g.model_bytes([g.entry("k", 7, b"\0")] * 2),
        "metadata 'k' at byte 38: the key appears twice",
    ),
    "value type": (meta(13, bytes(9)), "type of metadata 'k' at byte 33: unknown value type 13"),
    "value cut": (meta(12, bytes(8))[: VALUE + 7], "metadata 'k' at byte 37: truncated: needs 45 bytes"),
    "boolean": (meta(7, b"\2"), "metadata 'k' at byte 37: a boolean holds 2"),
    "string length": (meta(8, U64(99)), "length of metadata 'k' at byte 37: says 99 bytes"),
    "array count": (
        meta(9, struct.pack("<IQ", 6, 2**60)),
        "array metadata 'k' at byte 41: a count or length",
    ),
    "array wraps": (
        meta(9, struct.pack("<IQ", 10, 2**61)),
        "array metadata 'k' at byte 41: a count or length",
    ),
    "string count": (
        meta(9, struct.pack("<IQ", 8, 2**60)),
        "array metadata 'k' at byte 41: a count or length",
    ),
    "string in array": (
        meta(9, struct.pack("<IQ", 8, 2) + g.string("ab") + U64(2**64 - 1) + bytes(40)),
        "array metadata 'k' at byte 59: a count or length passes the end",
    ),
    "array type": (meta(9, struct.pack("<IQ", 14, 0)), "array metadata 'k' at byte 37: unknown item type"),
    "nested count": (
        meta(9, g.array(9, [struct.pack("<IQ", 9, 2**58)])),
        "array metadata 'k' at byte 53: a count or length",
    ),
    "nested boolean": (meta(9, g.array(7, [True])[:-1] + b"\7"), "at byte 49: a boolean is neither 0 nor 1"),
    "nesting": (meta(9, nested(9)), "arrays nest deeper than 8"),
    "alignment 24": (aligned(24), "general.alignment is 24"),
    "alignment 0": (aligned(0), "general.alignment is 0"),
    "alignment type": (aligned(32.0, 6), "'general.alignment' at byte .*: is FLOAT32, wanted an integer"),
    "tensor name": (one(name=""), "name of tensor 0 at byte 24: is empty"),
    "same tensor": (
        g.model_bytes([], [g.record("a", (8,), F32, 0), g.record("a", (8,), F32, 32)], bytes(64)),
        "tensor 'a' at byte 57: the name appears twice",
    ),
    "overlap by a byte": (
        g.model_bytes([], [g.record("a", (33,), TensorType.I8, 0), g.record("b", (8,), F32, 32)], bytes(64)),
        "33 bytes at 0 overlap tensor 'b' at 32",
    ),
    "dimensions": (one(ne=(1,) * 5), "dimension count of tensor 'a' at byte 33: 5; at most 4"),
    "zero dimension": (one(ne=(8, 0)), "dimension 1 of tensor 'a' at byte 45: 0 makes the shape empty"),
    "overflow": (
        one(ne=(2**32, 2**32)),
        "dimension 1 of tensor 'a' at byte 45: 4294967296 overflows 64 bits",
    ),
    "byte overflow": (one(ne=(2**62,)), "tensor 'a' at byte 24: shape .* overflows 64 bits"),
    "tensor type": (one(kind=36), "type of tensor 'a' at byte 45: unknown tensor type id 36"),
    "part block": (one(ne=(40,), kind=Q8_0), "rows of 40 values are not whole Q8_0 blocks of 32"),
    "part block row": (one(ne=(128, 2), kind=Q4_K, data=bytes(144)), "rows of 128 .* Q4_K blocks of 256"),
    "misaligned": (
        two(0, 33, 65),
        "offset of tensor 'b' at byte .*: 33 is not a multiple of the alignment 32",
    ),
    "overlap": (two(0, 0), "offset of tensor '[ab]' .*overlap tensor '[ab]' at 0"),
    "overlap partly": (
        g.model_bytes([], [g.record("a", (9,), F32, 0), g.record("b", (8,), F32, 32)], bytes(64)),
        "offset of tensor 'a' at byte 49: 36 bytes at 0 overlap tensor 'b' at 32",
    ),
    "truncated": (one()[:-1], "truncated, or a wrong offset: needs 96 bytes, the file has 95"),
    "no data": (g.model_bytes([], [g.record("a", (8,), F32, 0)])[:57], "needs 96 bytes, the file has 57"),
    "offset": (one(offset=2**63), "offset of tensor 'a' at byte 49: truncated, or a wrong offset"),
    "fork Q2_0 last": (
        one(ne=(128, 8), kind=Q2_0, data=bytes(272)),
        "type of tensor 'a' at byte .*: the data takes 272 bytes, which fits blocks of 128 values",
    ),
    "fork Q2_0 inside": (
        g.model_bytes(
            [], [g.record("a", (128, 32), Q2_0, 0), g.record("b", (8,), F32, 1088)], bytes(1088 + 32)
        ),
        r"a fork's format with Q2_0's id; Q2_0 is 64 values in 18 bytes \(1152 bytes here\)",
    ),
    "cut Q2_0": (one(ne=(128, 8), kind=Q2_0, data=bytes(200)), "truncated, or a wrong offset"),
}


@pytest.mark.parametrize("name", GOOD)
def test_good(tmp_path, name):
    (tmp_path / "m.gguf").write_bytes(GOOD[name])
    open_model(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", BAD)
def test_bad(tmp_path, name):
    data, message = BAD[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=message) as caught:
        open_model(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_names_from_the_file_stay_on_one_short_line(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(g.model_bytes([g.entry("a\nb" + "c" * 5000, 7, b"\2")]))
    with pytest.raises(ModelFileError) as caught:
        open_model(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300 + len(str(path))


def test_things_that_are_not_files(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("none", "no such file"),
        (".", "is a directory"),
        ("empty", "the file is empty"),
        ("pipe", "is not a regular file"),
        ("none/deeper", "no such file"),
        ("empty/deeper", "cannot be read: Not a directory"),
        ("x" * 300, "cannot be read: File name too long"),
        ("nul\0", "cannot be read"),
    ):
        with pytest.raises(ModelFileError, match=message):
            open_model(tmp_path / name)


def shard(no, count, names, total=None, said=None):
    """Bytes of shard `no` (from 0) of `count`; `total` adds split.tensors.count."""
    entries = [g.entry("split.no", 2, g.scalar(2, no)), g.entry("split.count", 2, g.scalar(2, said or count))]
    if total is not None:
        entries += [g.entry("split.tensors.count", 5, g.scalar(5, total)), g.entry("only.first", 4, bytes(4))]
    records = [g.record(name, (8,), F32, 32 * i) for i, name in enumerate(names)]
    data = b"".join(name.encode() * 32 for name in names)
    return g.model_bytes(entries, records, data)


@pytest.fixture
def split(tmp_path):
    def write(*parts):
        paths = []
        for no, part in enumerate(parts, 1):
            paths.append(tmp_path / f"m-{no:05}-of-{len(parts):05}.gguf")
            paths[-1].write_bytes(part)
        return paths

    return write


def test_any_shard_opens_the_set(split):
    paths = split(shard(0, 3, [], 3), shard(1, 3, ["b", "c"]), shard(2, 3, ["d"]))
    for path in paths:
        model = open_model(path)
        assert [part.path for part in model.shards] == paths
        assert {name: model.data(name).tobytes() for name in model.tensors} == {
            x: x.encode() * 32 for x in "bcd"
        }
        assert [info.shard for info in model.tensors.values()] == [1, 1, 2]
        assert "only.first" in model.metadata
        assert model.nbytes == sum(part.stat().st_size for part in paths)


def test_faults_of_a_set(split, tmp_path):
    good = [shard(0, 3, [], 3), shard(1, 3, ["b", "c"]), shard(2, 3, ["d"])]
    for change, message in (
        ({1: shard(2, 3, ["b", "c"])}, r"m-00002-of-00003.gguf: split.no is 2, its file name says 1"),
        (
            {1: shard(1, 3, ["b", "c"], said=4)},
            r"m-00002-of-00003.gguf: split.count is 4, its file name says 3",
        ),
        ({2: shard(2, 3, ["c"])}, "m-00003-of-00003.gguf: tensor 'c' is also in m-00002-of-00003.gguf"),
        ({1: shard(1, 3, ["b"])}, "split.tensors.count is 3, the shards hold 2"),
        ({2: g.model_bytes()}, "m-00003-of-00003.gguf: metadata has no 'split.no'"),
        ({2: shard(2, 3, ["d"])[:-1]}, "m-00003-of-00003.gguf: offset of tensor 'd' .* truncated"),
    ):
        paths = split(*(change.get(i, part) for i, part in enumerate(good)))
        with pytest.raises(ModelFileError, match=message):
            open_model(paths[0])
    paths = split(*good)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=r"1 of 3 shards missing: m-00002-of-00003.gguf"):
        open_model(paths[2])
    renamed = paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelFileError, match=r"is one of 3 shards .* must be named NAME-00001-of-00003.gguf"):
        open_model(renamed)
