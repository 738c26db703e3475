"""Files of hybrid families that cannot be right: each fault is named with the tensor or key, and both sizes."""

import re

import numpy as np
import pytest
from golden import ALL

from strata import models
from strata.errors import ModelFileError, UnsupportedError
from strata.gguf import open_model, write_model


def changed(tmp_path, name, *, drop=(), metadata=None, tensors=None):
    """A golden model with tensors left out, keys replaced (None: left out), and tensors of other shapes (zeros)."""
    file = open_model(ALL[name].model_path)
    keys = dict(file.metadata) | (metadata or {})
    specs = []
    for tensor, info in file.tensors.items():
        ne = (tensors or {}).get(tensor, info.ne)
        size = int(np.prod(ne)) // info.type.block_values * info.type.block_bytes
        data = file.data(tensor) if ne == info.ne else np.zeros(size, np.uint8)
        if tensor not in drop:
            specs.append((tensor, ne, info.type, data))
    path = tmp_path / "changed.gguf"
    write_model(path, {k: v for k, v in keys.items() if v is not None}, specs)
    return path


def key(name, value, kind=None):
    return {"metadata": {name: value if kind is None else np.array(value, kind)}}


def shape(name, *ne):
    return {"tensors": {name: ne}}


QWEN35 = [
    ({"drop": ["blk.0.ssm_a"]}, "tensor blk.0.ssm_a is missing"),
    (shape("blk.0.ssm_conv1d.weight", 4, 90), "blk.0.ssm_conv1d.weight has shape [90, 4], expected"),
    (key("qwen35.ssm.time_step_rank", 3), "3 value heads over 2 key heads do not divide"),
    (key("qwen35.ssm.group_count", 0), "qwen35.ssm.group_count is 0; it must be positive"),
    (key("qwen35.attention.head_count_kv", 3), "4 query heads over 3 key heads"),
    (shape("blk.2.attn_q.weight", 32, 128), "blk.2.attn_q.weight has shape [128, 32], expected [256, 32]"),
]
QWEN4EXP = [
    ({"drop": ["blk.0.hc_attn_inject.weight"]}, "tensor blk.0.hc_attn_inject.weight is missing"),
    (key("qwen4exp.hyper_connection.count", 3), "hc_attn_down.weight has shape"),
    ({"drop": ["blk.2.indexer.k_norm.weight"]}, "tensor blk.2.indexer.k_norm.weight is missing"),
    (key("qwen4exp.attention.compress_ratios", [0, 0], "i4"), "2 attention.compress_ratios; block 2"),
    (key("qwen4exp.attention.compress_ratios", [0, 0, 5, 0], "i4"), "5 cells; a ratio must divide 64"),
    (key("qwen4exp.attention.indexer.top_k", 10), "top_k of 10 is not whole blocks of 4"),
    (key("qwen4exp.ple.head_offsets", np.arange(8) * 400, "u8"), "n-gram heads reach row 2853"),
    (key("qwen4exp.ple.layer_multipliers", [1, 3], "u8"), "2 multipliers for n-grams of 3 tokens"),
    (key("qwen4exp.expert_count", 9), "has 6 experts, the metadata says 9"),
]
QWEN3NEXT = [(shape("blk.0.ssm_ba.weight", 32, 7), "blk.0.ssm_ba.weight has shape [7, 32], expected [8, 32]")]
CASES = [
    (name, *case)
    for name, cases in (("qwen35", QWEN35), ("qwen4exp", QWEN4EXP), ("qwen3next", QWEN3NEXT))
    for case in cases
]


@pytest.mark.parametrize("name, change, message", CASES, ids=[c[2] for c in CASES])
def test_faults_are_named(name, change, message, tmp_path):
    with pytest.raises(ModelFileError, match=re.escape(message)):
        models.load(open_model(changed(tmp_path, name, **change)))


def test_what_is_not_supported_is_named(tmp_path):
    two = changed(tmp_path, "qwen4exp", metadata={"qwen4exp.ple.layers": np.array([0, 1], np.uint32)})
    with pytest.raises(UnsupportedError, match="2 n-gram layers; one is supported"):
        models.load(open_model(two))
    scaled = changed(tmp_path, "qwen35", metadata={"qwen35.rope.scaling.type": "longrope"})
    with pytest.raises(UnsupportedError, match="rope scaling 'longrope'"):
        models.load(open_model(scaled))


def test_missing_draft_tensors_are_named(tmp_path):
    for tensor in ("nextn.hnorm.weight", "nextn.hc_head_up.weight", "attn_k.weight", "ffn_gate_inp.weight"):
        path = changed(tmp_path, "qwen4exp", drop=[f"blk.3.{tensor}"])
        file = open_model(path)
        with pytest.raises(ModelFileError, match=re.escape(f"tensor blk.3.{tensor} is missing")):
            models.load_with_draft(file, file)
        models.load(file)
        path.unlink()


def test_an_unchanged_copy_loads(tmp_path):
    assert models.load(open_model(changed(tmp_path, "qwen4exp"))).config.num_layers == 3
