"""Reading safetensors: values of every type, pieces, and files that are not what they say."""

import json
import struct
import tracemalloc

import numpy as np
import pytest
from checkpoints import taken_back, write_checkpoint, write_safetensors

from strata.convert import checkpoint, plan_conversion
from strata.convert.checkpoint import Checkpoint, read_header
from strata.errors import ModelFileError, UnsupportedError, UsageError
from strata.gguf import open_model


def bf16(x):
    """The upper halves of float32 values that have nothing in the lower."""
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def test_values_of_float_types(tmp_path):
    x = np.array([[1.5, -2.0], [0.25, 3.0], [-0.5, 8.0]], np.float32)
    tensors = {"a": x, "b": x.astype(np.float16), "c": bf16(x)}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    found = Checkpoint(tmp_path)
    for name in tensors:
        assert np.array_equal(found.floats(name), x), name
        assert np.array_equal(found.floats(name, np.array([2, 0])), x[[2, 0]]), name


def test_pieces_follow_the_order(tmp_path, monkeypatch):
    x = np.arange(40, dtype=np.float32).reshape(10, 4)
    write_safetensors(tmp_path / "model.safetensors", {"x": x})
    monkeypatch.setattr(checkpoint, "PIECE_VALUES", 12)
    order = np.array([9, 0, 3, 3, 7])
    pieces = list(Checkpoint(tmp_path).pieces("x", order))
    assert [len(piece) for piece in pieces] == [3, 2]
    assert np.array_equal(np.concatenate(pieces), x[order])


def header_file(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


GOOD = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
BAD = {
    "a header longer than the file": (b"", None),
    "not JSON": (b"{", b""),
    "not an object": ([1], b""),
    "truncated data": ({"x": GOOD}, bytes(15)),
    "bytes that are not the shape's": ({"x": GOOD | {"data_offsets": [0, 12]}}, bytes(16)),
    "a negative size": ({"x": GOOD | {"shape": [-2, -2]}}, bytes(16)),
    "an unknown type": ({"x": GOOD | {"dtype": "F3"}}, bytes(16)),
    "no offsets": ({"x": {"dtype": "F32", "shape": [2]}}, bytes(16)),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_header_is_refused(fault, tmp_path):
    header, data = BAD[fault]
    path = tmp_path / "model.safetensors"
    if data is None:
        path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    else:
        header_file(path, header, data)
    with pytest.raises(ModelFileError, match=r"model\.safetensors: "):
        read_header(path)


def test_a_good_header_is_not(tmp_path):
    path = header_file(tmp_path / "model.safetensors", {"x": GOOD, "__metadata__": {}}, bytes(16))
    assert read_header(path)["x"].shape == (2, 2)


@pytest.fixture
def tiny(tmp_path):
    def write(change=lambda config, tensors: None, name="qwen35moe", shards=1):
        config, tensors = taken_back(name)
        change(config, tensors)
        return write_checkpoint(tmp_path / "hf", config, tensors, shards)

    return write


def test_a_missing_tensor_is_named(tiny):
    directory = tiny(lambda config, tensors: tensors.pop("model.layers.0.linear_attn.out_proj.weight"))
    with pytest.raises(ModelFileError, match=r"model\.layers\.0\.linear_attn\.out_proj\.weight"):
        plan_conversion(directory, "F32")


def test_a_tensor_without_a_place_is_named(tiny):
    directory = tiny(lambda config, tensors: tensors.update({"model.extra": np.zeros(3, np.float32)}))
    with pytest.raises(ModelFileError, match=r"1 tensors have no place in qwen35moe: model\.extra"):
        plan_conversion(directory, "F32")


def test_experts_of_different_shapes_are_refused(tiny):
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    directory = tiny(lambda config, tensors: tensors.update({name: tensors[name][:-1]}))
    with pytest.raises(ModelFileError, match="differ in shape"):
        plan_conversion(directory, "F32")


def test_a_missing_shard_is_named(tiny):
    directory = tiny(shards=3)
    (directory / "model-00001-of-00003.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model-00001-of-00003\.safetensors: No such file"):
        plan_conversion(directory, "F32")


def test_f8_weights_are_refused_by_name(tiny, tmp_path):
    directory = tiny()
    path = directory / "model.safetensors"
    path.write_bytes(
        path.read_bytes().replace(b'"F32"', b'"I32"', 1)
    )  # same size, so the rest stays in place
    assert plan_conversion(directory, "F32")
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    first = min(header, key=lambda n: header[n]["data_offsets"][0])
    header[first] |= {
        "dtype": "F8_E4M3",
        "shape": [*header[first]["shape"][:-1], header[first]["shape"][-1] * 4],
    }
    header_file(path, header, raw[8 + length :])
    with pytest.raises((UnsupportedError, ModelFileError), match=r"F8_E4M3|shape"):
        plan_conversion(directory, "F32").write(tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma9"}, "model type 'gemma9'; supported: qwen4_exp"),
        ({"mlp_only_layers": [0]}, "layers without experts"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rope type 'longrope'"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
        ({"num_experts_per_tok": "3"}, "num_experts_per_tok is '3', expected int"),
        ({"hidden_size": None}, "has no 'hidden_size'"),
    ],
)
def test_a_config_that_cannot_be_used(change, message, tiny):
    directory = tiny(lambda config, tensors: config.update(change))
    with pytest.raises((UnsupportedError, ModelFileError), match=message):
        plan_conversion(directory, "F32")


def test_usage(tiny, tmp_path):
    with pytest.raises(UsageError, match="--type is 'Q3_K'"):
        plan_conversion(tiny(), "Q3_K")
    with pytest.raises(ModelFileError, match="holds no draft layer"):
        plan_conversion(tiny(name="llama"), "F32", only_draft=True)
    with pytest.raises(ModelFileError, match=r"has neither model\.safetensors\.index\.json"):
        Checkpoint(tmp_path)


def test_memory_is_a_few_pieces(tmp_path, monkeypatch):
    """A 70 MB checkpoint goes through in less than a tenth of it: pieces, their float32 and their blocks."""
    config, _ = taken_back("qwen3moe")
    config |= {"vocab_size": 32768, "hidden_size": 256, "num_hidden_layers": 1}
    config |= {"num_experts": 64, "moe_intermediate_size": 256}
    rng, h = np.random.default_rng(0), 256

    def weight(*shape):
        return bf16(rng.standard_normal(shape, dtype=np.float32))

    layer = "model.layers.0."
    tensors = {"model.embed_tokens.weight": weight(32768, h), "lm_head.weight": weight(32768, h)}
    tensors |= {n: weight(h) for n in ("model.norm.weight", layer + "input_layernorm.weight")}
    tensors[layer + "post_attention_layernorm.weight"] = weight(h)
    for short, rows in (("q", 128), ("k", 64), ("v", 64)):
        tensors[f"{layer}self_attn.{short}_proj.weight"] = weight(rows, h)
    tensors[layer + "self_attn.o_proj.weight"] = weight(h, 128)
    tensors |= {f"{layer}self_attn.{x}_norm.weight": weight(32) for x in "qk"}
    tensors[layer + "mlp.gate.weight"] = weight(64, h)
    for i in range(64):
        tensors |= {f"{layer}mlp.experts.{i}.{x}_proj.weight": weight(h, h) for x in ("gate", "up", "down")}
    directory = write_checkpoint(tmp_path / "hf", config, tensors)
    total = (directory / "model.safetensors").stat().st_size
    del tensors
    monkeypatch.setattr(checkpoint, "PIECE_VALUES", 1 << 17)
    tracemalloc.start()
    try:
        plan_conversion(directory, "Q8_0").write(tmp_path / "out.gguf", threads=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total > 50e6
    assert peak < total / 10, f"{peak:,} of {total:,} bytes"
    with open_model(tmp_path / "out.gguf") as file:
        assert file.tensors["blk.0.ffn_up_exps.weight"].ne == (h, 256, 64)
