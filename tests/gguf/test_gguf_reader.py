import tracemalloc

import gguf_bytes as g
import numpy as np
import pytest

from strata.errors import ModelFileError
from strata.gguf import StringArray, TensorType, ValueType, open_model

SCALARS = {
    ValueType.UINT8: 255,
    ValueType.INT8: -128,
    ValueType.UINT16: 65535,
    ValueType.INT16: -32768,
    ValueType.UINT32: 2**32 - 1,
    ValueType.INT32: -(2**31),
    ValueType.FLOAT32: 0.5,
    ValueType.BOOL: True,
    ValueType.STRING: "naïve ▁ 語",
    ValueType.UINT64: 2**64 - 1,
    ValueType.INT64: -(2**63),
    ValueType.FLOAT64: 1e300,
}


@pytest.fixture
def write(tmp_path):
    def write_bytes(data, name="m.gguf"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write_bytes


@pytest.mark.parametrize("version", [2, 3])
def test_every_scalar_type(write, version):
    entries = [g.entry(kind.name, kind, g.scalar(kind, value)) for kind, value in SCALARS.items()]
    model = open_model(write(g.model_bytes(entries, version=version)))
    assert dict(model.metadata) == {kind.name: value for kind, value in SCALARS.items()}
    assert {key: model.metadata.types(key) for key in model.metadata} == {k.name: (k,) for k in SCALARS}
    assert (model.version, model.alignment, model.tensors) == (version, 32, {})


@pytest.mark.parametrize("kind", SCALARS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_every_array_type(write, kind, count):
    items = [SCALARS[kind]] * count
    payload = g.array(kind, items)
    model = open_model(write(g.model_bytes([g.entry("k", 9, payload), g.entry("after", 7, b"\1")])))
    value = model.metadata["k"]
    assert model.metadata.types("k") == (ValueType.ARRAY, kind)
    assert list(value) == items and len(value) == count
    if kind is not ValueType.STRING:
        assert isinstance(value, np.ndarray) and not (count and value.flags.writeable)
    assert model.metadata["after"] is True


def test_nested_arrays(write):
    inner = [g.array(4, [1, 2]), g.array(4, []), g.array(4, [3])]
    deep = g.array(9, [g.array(9, [g.array(8, ["a", "b"])]), g.array(9, [])])
    entries = [g.entry("a", 9, g.array(9, inner)), g.entry("b", 9, deep), g.entry("c", 4, g.scalar(4, 5))]
    model = open_model(write(g.model_bytes(entries)))
    assert [list(part) for part in model.metadata["a"]] == [[1, 2], [], [3]]
    assert [[list(x) for x in part] for part in model.metadata["b"]] == [[["a", "b"]], []]
    assert model.metadata["c"] == 5


def test_large_vocabulary_is_not_decoded_at_open(write):
    tokens = [f"token{i}é" for i in range(248_320)]
    entries = [
        g.entry("tokens", 9, g.array(8, tokens)),
        g.entry(
            "types", 9, np.uint32([5]).tobytes() + np.uint64([len(tokens)]).tobytes() + bytes(4 * len(tokens))
        ),
    ]
    path = write(g.model_bytes(entries))
    tracemalloc.start()
    model = open_model(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000  # one Python object a token would take ten million
    value = model.metadata["tokens"]
    assert isinstance(value, StringArray)
    assert (value[3], value[-1], value[5:7]) == (tokens[3], tokens[-1], tokens[5:7])
    assert value.to_list() == tokens == list(value)
    assert model.metadata["types"].shape == (248_320,)
    with pytest.raises(IndexError):
        value[len(tokens)]


def test_string_that_is_not_utf8_is_named_when_touched(write):
    path = write(
        g.model_bytes([g.entry("k", 9, g.array(8, ["a", b"b\xff"])), g.entry("s", 8, g.string(b"\xff"))])
    )
    value = open_model(path).metadata["k"]
    assert (value[0], value.raw(1)) == ("a", b"b\xff")
    at = path.read_bytes().index(b"\xff")
    for touch in (lambda: value[1], value.to_list):
        with pytest.raises(ModelFileError, match=rf"'k'\[1\] at byte {at}: not UTF-8"):
            touch()
    with pytest.raises(ModelFileError, match=r"metadata 's' at byte .*: not UTF-8"):
        open_model(path).metadata["s"]


def test_typed_gets(write):
    entries = [
        g.entry("n", 10, g.scalar(10, 7)),
        g.entry("b", 7, b"\1"),
        g.entry("f", 6, g.scalar(6, 0.5)),
        g.entry("l", 9, g.array(8, ["x"])),
        g.entry("a", 9, g.array(10, [2**64 - 1])),
    ]
    model = open_model(write(g.model_bytes(entries)))
    assert (model.get("n", int), model.get("b", bool), model.get("f", float)) == (7, True, 0.5)
    assert model.get("a", np.ndarray)[0] == 2**64 - 1 and list(model.get("l", StringArray)) == ["x"]
    assert model.get("none", int, 3) == 3
    for key, kind, message in (
        ("none", int, "m.gguf: metadata has no 'none'"),
        ("n", str, "metadata 'n' at byte 37: is UINT64, wanted a string"),
        ("b", int, "'b' at byte .*: is BOOL, wanted an integer"),
        ("f", int, "is FLOAT32, wanted an integer"),
        ("l", np.ndarray, "is ARRAY of STRING, wanted an array of numbers"),
        ("a", StringArray, "is ARRAY of UINT64, wanted an array of strings"),
        ("n", float, "is UINT64, wanted a float"),
    ):
        with pytest.raises(ModelFileError, match=message):
            model.get(key, kind)


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensor_data_is_a_view(write, alignment):
    data = np.arange(3 * alignment, dtype=np.uint8).tobytes()
    records = [
        g.record("a", (2, 3), TensorType.F16, 0),
        g.record("b", (32,), TensorType.Q8_0, 2 * alignment if alignment > 8 else 16),
    ]
    data += bytes(100)
    entries = [g.entry("general.alignment", 4, g.scalar(4, alignment))]
    path = write(g.model_bytes(entries, records, data, alignment=alignment))
    model = open_model(path)
    info, view = model.tensors["b"], model.data("b")
    assert (info.ne, info.type, info.nbytes, info.values) == ((32,), TensorType.Q8_0, 34, 32)
    assert (
        view.tobytes() == path.read_bytes()[info.offset : info.offset + 34] and info.offset % alignment == 0
    )
    assert (view.dtype, view.shape, view.flags.writeable, view.flags.owndata) == (
        np.uint8,
        (34,),
        False,
        False,
    )
    with pytest.raises(ModelFileError, match="there is no tensor 'c'"):
        model.data("c")


def test_views_outlive_close(write):
    path = write(g.model_bytes([], [g.record("a", (4,), 24, 0)], b"abcd"))
    with open_model(path) as model:
        view = model.data("a")
    assert view.tobytes() == b"abcd"
    for use in (lambda: model.data("a"), lambda: model.metadata):
        with pytest.raises(ModelFileError, match="is closed"):
            use()


def test_a_tensor_without_dimensions_is_one_value(write):
    model = open_model(write(g.model_bytes([], [g.record("a", (), 0, 0)], bytes(4))))
    assert (model.tensors["a"].ne, model.tensors["a"].nbytes) == ((1,), 4)
