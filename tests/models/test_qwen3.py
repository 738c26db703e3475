"""qwen3moe, qwen3 and qwen2 as whole models: goldens, oracles, bits for every way to cut the work, refusals."""

import hashlib

import numpy as np
import pytest
from edit_model import edit_model, f32, floats
from golden import ALL
from harness import nrmse

from oracles import Model
from oracles import logits as oracle_logits
from strata import _native, models
from strata.config import EngineOptions
from strata.engine import Engine
from strata.errors import ModelFileError, UnsupportedError
from strata.gguf import open_model


def logits(path, tokens, prefill=512, **options):
    engine = Engine.load(path, EngineOptions(max_model_len=len(tokens), prefill=prefill, kv="f32", **options))
    return np.concatenate(list(engine.logits([int(t) for t in tokens])))


def digest(rows):
    return hashlib.sha256(np.ascontiguousarray(rows, np.float32).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """qwen3 (norms of heads) and qwen2 (biases) with a SwiGLU, out of the golden llama of the same shapes."""
    source, out = ALL["llama"].model_path, tmp_path_factory.mktemp("dense")
    g, norms, biases = np.random.default_rng(7), {}, {}
    for i in range(open_model(source).get("llama.block_count", int)):
        for name in ("attn_q", "attn_k", "attn_v"):
            rows = len(floats(source, f"blk.{i}.{name}.weight"))
            biases[f"blk.{i}.{name}.bias"] = f32(0.3 * g.standard_normal(rows))
        for name in ("attn_q_norm", "attn_k_norm"):
            head_dim = open_model(source).get("llama.attention.key_length", int)
            norms[f"blk.{i}.{name}.weight"] = f32(1 + 0.2 * g.standard_normal(head_dim))
    return {
        "qwen3": edit_model(source, out / "qwen3.gguf", norms, architecture="qwen3"),
        "qwen2": edit_model(source, out / "qwen2.gguf", biases, architecture="qwen2"),
    }


@pytest.mark.parametrize("name", ["qwen3moe", "qwen3moe-quantised"])
def test_goldens(name):
    case = ALL[name]
    exact = logits(case.model_path, case.tokens, backend="reference")
    assert nrmse(exact, case.logits) <= 1e-5
    contract = logits(case.model_path, case.tokens, backend="contract")
    cpu = logits(case.model_path, case.tokens, threads=2)
    assert digest(cpu) == digest(contract)
    assert nrmse(cpu, case.logits) <= (0.06 if "quantised" in name else 1e-4)
    assert nrmse(logits(case.model_path, case.tokens[::-1], backend="reference"), case.logits) > 0.1


@pytest.mark.parametrize("name", ["qwen3", "qwen2"])
def test_dense_relatives(dense, name):
    tokens = ALL["llama"].tokens
    want = oracle_logits(Model(dense[name]), tokens)
    assert nrmse(logits(dense[name], tokens, backend="reference"), want) <= 1e-5
    cpu = logits(dense[name], tokens)
    assert nrmse(cpu, want) <= 1e-4
    assert digest(cpu) == digest(logits(dense[name], tokens, backend="contract"))
    assert nrmse(cpu, ALL["llama"].logits) > 0.1, "llama's own logits are other ones"


TRUNK = ["attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "attn_q", "attn_v", "attn_output"]


@pytest.mark.parametrize("plane", [*TRUNK, "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"])
def test_every_tensor_counts(tmp_path, plane):
    case, name = ALL["qwen3moe"], f"blk.1.{plane}.weight"
    changed = floats(case.model_path, name)[..., ::-1].copy()
    path = edit_model(case.model_path, tmp_path / "m.gguf", {name: f32(changed)})
    assert nrmse(logits(path, case.tokens, backend="reference"), case.logits) > 1e-3


@pytest.mark.parametrize(
    "change", [{"expert_used_count": 2}, {"rope.freq_base": 5e5}, {"attention.layer_norm_rms_epsilon": 1e-3}]
)
def test_every_number_counts(tmp_path, change):
    case = ALL["qwen3moe"]
    path = edit_model(case.model_path, tmp_path / "m.gguf", metadata=change)
    assert nrmse(logits(path, case.tokens, backend="reference"), case.logits) > 1e-3


@pytest.mark.parametrize("name", ["qwen3moe", "qwen3moe-quantised"])
def test_one_hash_for_every_way_to_cut_the_work(name):
    case = ALL[name]
    want = digest(logits(case.model_path, case.tokens))
    for level in _native.isa_levels():
        for threads in (1, 2):
            for prefill in (1, 2, 7, 32):
                got = logits(case.model_path, case.tokens, prefill, isa=level, threads=threads)
                assert digest(got) == want, f"{level}, {threads} threads, {prefill} rows a step"
    assert digest(logits(case.model_path, [*case.tokens[:-1], (case.tokens[-1] + 1) % 128])) != want


def test_a_decode_row_reads_its_experts_alone():
    path = ALL["qwen3moe"].model_path
    file = open_model(path)
    engine = Engine.load(path, EngineOptions(max_model_len=64))
    stacks = sum(t.nbytes for name, t in file.tensors.items() if "_exps" in name)
    table = file.tensors["token_embd.weight"].nbytes
    rest = sum(t.nbytes for t in file.tensors.values()) - stacks - table
    assert engine.weight_bytes_per_token == rest + stacks * 3 // 8 + table // 128


REFUSED = {
    "no q norm": (
        "qwen3",
        {"blk.0.attn_q_norm.weight": None},
        {},
        ModelFileError,
        r"attn_q_norm\.weight is missing",
    ),
    "no bias": ("qwen2", {"blk.1.attn_v.bias": None}, {}, ModelFileError, r"blk\.1\.attn_v\.bias is missing"),
    "norm of another width": (
        "qwen3",
        {"blk.0.attn_k_norm.weight": f32(np.ones(8))},
        {},
        ModelFileError,
        r"attn_k_norm\.weight has shape \[8\], expected \[\d+\]",
    ),
    "a window": (
        "qwen3",
        {},
        {"attention.sliding_window": 128},
        UnsupportedError,
        "sliding window of 128 tokens",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_refusals(dense, tmp_path, fault):
    name, tensors, metadata, kind, words = REFUSED[fault]
    path = edit_model(dense[name], tmp_path / "m.gguf", tensors, metadata)
    with pytest.raises(kind, match=words):
        models.load(open_model(path))


def test_architectures():
    assert {"llama", "qwen2", "qwen3", "qwen3moe"} <= set(models.supported_architectures())
