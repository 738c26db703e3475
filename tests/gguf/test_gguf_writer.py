import gguf_bytes as g
import numpy as np
import pytest

import gguf
from strata.errors import UsageError
from strata.gguf import TensorType, Typed, ValueType, open_model, write_model

METADATA = {
    "general.architecture": "llama",
    "small": 7,
    "negative": -7,
    "large": 2**40,
    "very negative": -(2**40),
    "float": 0.25,
    "yes": True,
    "tokens": ["a", "ü", ""],
    "scores": [0.5, -1.0],
    "multipliers": Typed([23703573157769, 1, 2**64 - 1], ValueType.UINT64),
    "offsets": np.array([1, 2], np.uint64),
    "i16": np.array([-1, 2], np.int16),
    "flags": [True, False],
    "double": Typed(0.1, ValueType.FLOAT64),
    "byte": np.uint8(200),
    "none": Typed([], ValueType.INT32),
    "nested": [[1, 2], [3]],
    "mixed": [1, 2**40],
    "signed": [-1, 2**40],
}
TYPES = {
    "small": "UINT32",
    "negative": "INT32",
    "large": "UINT64",
    "very negative": "INT64",
    "float": "FLOAT32",
    "yes": "BOOL",
    "tokens": "ARRAY STRING",
    "scores": "ARRAY FLOAT32",
    "multipliers": "ARRAY UINT64",
    "offsets": "ARRAY UINT64",
    "i16": "ARRAY INT16",
    "flags": "ARRAY BOOL",
    "double": "FLOAT64",
    "byte": "UINT8",
    "none": "ARRAY INT32",
    "nested": "ARRAY ARRAY UINT32",
    "mixed": "ARRAY UINT64",
    "signed": "ARRAY INT64",
}


def plain(value):
    """Any metadata value as Python lists and scalars."""
    if isinstance(value, Typed):
        return plain(value.value)
    if isinstance(value, str | int | float):
        return value
    return [plain(item) for item in value] if hasattr(value, "__len__") else value.item()


def tensors(seed=0):
    rng = np.random.default_rng(seed)
    kinds = [
        TensorType.F32,
        TensorType.Q4_K,
        TensorType.Q8_0,
        TensorType.IQ3_XXS,
        TensorType.I8,
        TensorType.Q2_0,
    ]
    for i, kind in enumerate(kinds):
        ne = (256, 3 + i)
        yield f"t{i}", ne, kind, rng.integers(0, 256, kind.nbytes(256 * (3 + i)), np.uint8).tobytes()


@pytest.mark.parametrize("alignment", [32, 256])
def test_round_trip(tmp_path, alignment):
    path = tmp_path / "m.gguf"
    write_model(path, METADATA, tensors(), alignment)
    model = open_model(path)
    assert model.alignment == alignment
    found = {key: plain(model.metadata[key]) for key in model.metadata if key != "general.alignment"}
    assert found == {key: plain(value) for key, value in METADATA.items()}
    assert {k: " ".join(t.name for t in model.metadata.types(k)) for k in TYPES} == TYPES
    for name, ne, kind, data in tensors():
        info = model.tensors[name]
        assert (info.ne, info.type, model.data(name).tobytes()) == (ne, kind, data)
    again = tmp_path / "again.gguf"
    kinds = {key: model.metadata.types(key)[-1] for key in model.metadata}
    metadata = {key: Typed(model.metadata[key], kinds[key]) for key in model.metadata}
    write_model(
        again,
        metadata,
        ((t.name, t.ne, t.type, model.data(t.name)) for t in model.tensors.values()),
        alignment,
    )
    assert again.read_bytes() == path.read_bytes()


def test_the_gguf_package_reads_what_we_write(tmp_path):
    path = tmp_path / "m.gguf"
    written = [t for t in tensors() if t[2] is not TensorType.Q2_0]  # a type it does not know
    metadata = {key: value for key, value in METADATA.items() if key not in ("nested", "none")}
    write_model(path, metadata, written, 64)
    reader = gguf.GGUFReader(path)
    for key, value in metadata.items():
        assert plain(reader.get_field(key).contents()) == plain(value), key
    assert reader.alignment == 64
    assert [
        (t.name, tuple(map(int, t.shape)), t.tensor_type.name, t.data.tobytes()) for t in reader.tensors
    ] == [(name, ne, kind.name, data) for name, ne, kind, data in written]


def test_we_read_what_the_gguf_package_writes(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "qwen4exp")
    writer.add_block_count(3)
    writer.add_key_value("u64", [2**63 + 1], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64)
    writer.add_token_list(["x", "é"])
    writer.add_float64("d", 0.1)
    writer.add_custom_alignment(128)
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    blocks = gguf.quantize(
        np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("a", data)
    writer.add_tensor("b", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = open_model(path)
    assert (model.get("general.architecture", str), model.get("qwen4exp.block_count", int)) == ("qwen4exp", 3)
    assert plain(model.metadata["u64"]) == [2**63 + 1] and model.get("d", float) == 0.1
    assert plain(model.metadata["tokenizer.ggml.tokens"]) == ["x", "é"] and model.alignment == 128
    assert model.tensors["a"].ne == (4, 3) and model.data("a").tobytes() == data.tobytes()
    assert (model.tensors["b"].ne, model.tensors["b"].type) == ((64, 2), TensorType.Q8_0)
    assert model.data("b").tobytes() == blocks.tobytes()


def test_the_writer_agrees_with_hand_made_bytes(tmp_path):
    path = tmp_path / "m.gguf"
    write_model(path, {"k": "v", "n": Typed(3, ValueType.INT8)}, [("a", (3,), TensorType.I8, b"abc")])
    entries = [g.entry("k", 8, g.string("v")), g.entry("n", 1, b"\3")]
    assert path.read_bytes() == g.model_bytes(entries, [g.record("a", (3,), 24, 0)], b"abc" + bytes(29))


def test_chunks_stream(tmp_path):
    chunks = [b"ab", np.array([1, 2], np.int16), bytearray(b"cd"), memoryview(b"xyz")]
    write_model(tmp_path / "m.gguf", {}, [("a", (11,), TensorType.I8, iter(chunks))])
    assert open_model(tmp_path / "m.gguf").data("a").tobytes() == b"ab\1\0\2\0cdxyz"


@pytest.mark.parametrize(
    ("metadata", "specs", "alignment", "message"),
    [
        ({}, [("a", (3,), TensorType.I8, b"ab")], 32, r"tensor 'a': I8 \[3\] takes 3 bytes, 2 were given"),
        ({}, [("a", (3,), TensorType.I8, iter([b"ab", b"cd"]))], 32, "takes 3 bytes, 4 were given"),
        ({}, [("a", (33,), TensorType.Q8_0, b"")], 32, "rows of 33 are not whole Q8_0 blocks of 32"),
        ({}, [("a", (0,), TensorType.I8, b"")], 32, "positive dimensions"),
        ({}, [("a", (1,) * 5, TensorType.I8, b"a")], 32, "1 to 4 positive dimensions"),
        ({}, [("a", (1,), TensorType.I8, b"a")] * 2, 32, "given twice"),
        ({}, [], 24, "alignment is 24"),
        ({"k": Typed(256, ValueType.UINT8)}, [], 32, "'k': 256 does not fit UINT8"),
        ({"k": Typed("x", ValueType.UINT8)}, [], 32, "does not fit UINT8"),
        ({"k": Typed(1, ValueType.STRING)}, [], 32, "does not fit STRING"),
        ({"k": Typed(np.array([300]), ValueType.UINT8)}, [], 32, "values do not fit UINT8"),
        ({"k": []}, [], 32, "an empty list needs its type"),
        ({"k": [1, "a"]}, [], 32, "cannot hold STRING and UINT32"),
        ({"k": None}, [], 32, "a NoneType cannot be written"),
        ({"k": np.array([1j])}, [], 32, "an array of complex128 cannot be written"),
        ({"k": 2**64}, [], 32, "does not fit UINT64"),
    ],
)
def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, metadata, specs, alignment, message):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")
    with pytest.raises(UsageError, match=message):
        write_model(path, metadata, specs, alignment)
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"] and path.read_bytes() == b"old"


def test_a_failing_source_leaves_nothing_behind(tmp_path):
    def chunks():
        yield b"ab"
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        write_model(tmp_path / "m.gguf", {}, [("a", (4,), TensorType.I8, chunks())])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        write_model(tmp_path / "none" / "m.gguf", {}, [])
