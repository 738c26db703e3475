"""Tiny models: every family, any type, exactly the tensors that the converter makes; and dense ones."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oracles import Model, draft_logits, logits
from strata.errors import UsageError
from strata.gguf import TensorType, open_model
from strata.models import load
from strata.quants import FORMATS
from strata.synth import (
    ARCHITECTURES,
    DENSE,
    DenseOptions,
    TinyOptions,
    tiny_geometry,
    uniform_types,
    write_dense,
    write_tiny,
)
from strata.synth.blocks import Pool, random_pieces
from strata.synth.geometry import HYBRID

WITNESSED = [arch for arch in ARCHITECTURES if arch != "qwen3"]  # qwen3 has neither golden file nor oracle

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "goldens"


@pytest.mark.parametrize("arch", WITNESSED)
def test_the_oracle_runs_it(arch, tmp_path):
    write_tiny(tmp_path / "x.gguf", TinyOptions(replace(tiny_geometry(arch), draft=arch in HYBRID)))
    model, tokens = Model(tmp_path / "x.gguf"), np.arange(20) * 7 % 256
    found = logits(model, tokens)
    assert found.shape == (20, 256)
    assert 0.05 < found.std() < 20
    if arch in HYBRID:
        assert draft_logits(model, tokens).shape == (19, 256)


@pytest.mark.parametrize("arch", WITNESSED)
def test_names_and_keys_are_those_of_the_golden_file(arch, tmp_path):
    golden = Path(GOLDENS / arch / "model.gguf")
    with open_model(golden) as expected:
        layers = expected.get(f"{arch}.block_count", int) - expected.get(
            f"{arch}.nextn_predict_layers", int, 0
        )
        draft = f"{arch}.nextn_predict_layers" in expected.metadata
        interval = expected.get(f"{arch}.full_attention_interval", int, 4)
        geometry = replace(tiny_geometry(arch), num_layers=layers, interval=interval, draft=draft)
        write_tiny(tmp_path / "x.gguf", TinyOptions(geometry))
        with open_model(tmp_path / "x.gguf") as found:
            assert set(found.tensors) == set(expected.tensors)
            for name, info in expected.tensors.items():
                assert len(found.tensors[name].ne) == len(info.ne), name
            missing = {k for k in expected.metadata if k.startswith(arch)} - set(found.metadata)
            assert not missing


@pytest.mark.parametrize("arch", ["llama", "qwen3", "qwen3moe"])
def test_the_engine_loads_it(arch, tmp_path):
    write_tiny(tmp_path / "x.gguf", TinyOptions(tiny_geometry(arch), uniform_types("Q8_0")))
    with open_model(tmp_path / "x.gguf") as file:
        assert load(file).config.num_layers == 4


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "NVFP4"])
def test_random_blocks_have_the_deviation_asked_for(name):
    kind = TensorType[name]
    pieces = random_pieces(Pool(1, 1 << 18), kind, 1 << 16, 0.02, np.random.default_rng(5))
    values = FORMATS[name].decode(np.concatenate([piece.reshape(-1) for _, piece in pieces]))
    assert values.shape == (1 << 16,)
    assert np.isfinite(values).all()
    # Three types keep the scales of older files, which are off; MXFP4 has powers of two.
    off = {"IQ3_XXS": 1.42, "Q6_K": 1.17, "Q4_K": 1.72}.get(name, 1.0)
    slack = 0.42 if name == "MXFP4" else 0.06
    assert abs(np.sqrt(np.mean(values**2)) / (0.02 * off) - 1) < slack


def test_pieces_are_the_whole(monkeypatch):
    pool, kind, rng = Pool(1, 1 << 12), TensorType.Q4_0, np.random.default_rng
    whole = np.concatenate([p.reshape(-1) for _, p in random_pieces(pool, kind, 32 * 1000, 1.0, rng(2))])
    out = np.zeros_like(whole)
    for begin in range(0, 1000, 300):
        for offset, piece in random_pieces(pool, kind, 32 * 1000, 1.0, rng(2), begin, min(begin + 300, 1000)):
            out[offset : offset + piece.size] = piece.reshape(-1)
    assert np.array_equal(out, whole)


def test_types_sizes_and_seed(tmp_path):
    geometry = replace(tiny_geometry("qwen35moe"), hidden_size=256, moe_intermediate_size=96)
    options = TinyOptions(geometry, {"gate": "IQ2_XS", "down": "Q4_K"}, seed=3)
    write_tiny(tmp_path / "a.gguf", options)
    write_tiny(tmp_path / "b.gguf", options)
    write_tiny(tmp_path / "c.gguf", replace(options, seed=4))
    with open_model(tmp_path / "a.gguf") as file:
        assert file.tensors["blk.0.ffn_gate_exps.weight"].type == TensorType.IQ2_XS
        assert (
            file.tensors["blk.0.ffn_down_exps.weight"].type == TensorType.Q8_0
        )  # rows of 96: no blocks of 256
        assert file.tensors["blk.0.attn_qkv.weight"].type == TensorType.F32
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert (tmp_path / "a.gguf").read_bytes() != (tmp_path / "c.gguf").read_bytes()


@pytest.mark.parametrize(
    ("arch", "sizes", "message"),
    [
        ("gemma", {}, "architecture 'gemma'"),
        ("qwen35", {"num_heads": 3}, "3 heads over 2"),
        ("qwen35moe", {"num_experts_per_tok": 9}, "9 experts a token of 8"),
        ("qwen4exp", {"ngram_layer": 3}, "n-gram layer 3"),
        ("llama", {"draft": True}, "a draft layer of llama"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arch, sizes, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        write_tiny(tmp_path / "x.gguf", TinyOptions(replace(tiny_geometry(arch), **sizes)))


@pytest.mark.parametrize("kind", ["Q4_K", "F16"])
def test_dense_bytes_are_those_of_the_tool(kind, tmp_path, monkeypatch):
    old, new = tmp_path / "old.gguf", tmp_path / "new.gguf"
    monkeypatch.setattr(sys, "argv", ["dense.py", str(old), kind, "256", "2", "512", "4", "2"])
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    spec = importlib.util.spec_from_file_location("dense_tool", ROOT / "tools" / "dense.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    sizes = {"num_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "num_kv_heads": 2}
    geometry = replace(DENSE, head_dim=64, rotary_dim=64, **sizes)
    write_dense(new, DenseOptions(kind, geometry), threads=2)
    assert old.read_bytes() == new.read_bytes()
