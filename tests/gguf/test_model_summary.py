import json

import pytest

import gguf
from strata.gguf import TensorType, open_model, write_model
from strata.models.disagreements import FILE_TYPES, RECIPES
from strata.models.roles import Role, roles_of
from strata.models.summary import lines, summarise

T = TensorType


def test_roles_of_the_target_model():
    wanted = {
        "token_embd.weight": Role.EMBEDDING,
        "output.weight": Role.OUTPUT_HEAD,
        "output_norm.weight": Role.NORMS,
        "output_hc_norm.weight": Role.HYPER_CONNECTIONS,
        "per_layer_token_embd.weight": Role.NGRAM_TABLE,
        "blk.0.attn_qkv.weight": Role.DELTA_RULE,
        "blk.0.attn_gate.weight": Role.DELTA_RULE,
        "blk.0.ssm_dt.bias": Role.DELTA_RULE,
        "blk.0.ssm_a": Role.DELTA_RULE,
        "blk.0.ssm_norm.weight": Role.NORMS,
        "blk.0.hc_attn_norm.weight": Role.HYPER_CONNECTIONS,
        "blk.1.ple_norm_key.weight": Role.NGRAM_TABLE,
        "blk.1.ple_conv1d.weight": Role.NGRAM_TABLE,
        "blk.3.attn_qkv.weight": Role.ATTENTION,
        "blk.3.attn_q.weight": Role.ATTENTION,
        "blk.3.attn_q.bias": Role.ATTENTION,
        "blk.3.attn_q_norm.weight": Role.NORMS,
        "blk.3.indexer.q_proj.weight": Role.ATTENTION,
        "blk.3.indexer.q_norm.weight": Role.NORMS,
        "blk.3.post_attention_norm.weight": Role.NORMS,
        "blk.3.ffn_gate.weight": Role.DENSE_FFN,
        "blk.3.ffn_down.weight": Role.DENSE_FFN,
        "blk.3.ffn_gate_inp.weight": Role.ROUTER,
        "blk.3.exp_probs_b.bias": Role.ROUTER,
        "blk.3.ffn_gate_exps.weight": Role.ROUTED_EXPERTS,
        "blk.3.ffn_gate_up_exps.weight": Role.ROUTED_EXPERTS,
        "blk.3.ffn_down_exps.scale": Role.ROUTED_EXPERTS,
        "blk.3.ffn_down.11.weight": Role.ROUTED_EXPERTS,
        "blk.3.ffn_gate_inp_shexp.weight": Role.SHARED_EXPERT,
        "blk.3.ffn_up_shexp.weight": Role.SHARED_EXPERT,
        "blk.48.attn_q.weight": Role.DRAFT_LAYER,
        "blk.48.nextn.eh_proj.weight": Role.DRAFT_LAYER,
        "v.blk.0.ln1.weight": Role.VISION,
        "mm.0.bias": Role.VISION,
        "rope_freqs.weight": Role.OTHER,
    }
    roles = roles_of(wanted, 48)
    assert {name: roles.of(name) for name in wanted} == wanted


def write(path, *, kind=T.Q4_K, hidden=256, vocab=8, blocks=2, experts=0, **metadata):
    """A small llama-shaped file; keyword names with __ for dots."""
    values = {"general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 256}
    values |= {key.replace("__", "."): value for key, value in metadata.items()}
    shapes = {"token_embd.weight": (T.Q8_0, (hidden, vocab)), "output_norm.weight": (T.F32, (hidden,))}
    for block in range(blocks):
        shapes[f"blk.{block}.attn_q.weight"] = (kind, (hidden, 256))
        shapes[f"blk.{block}.ffn_up.weight"] = (kind, (hidden, 512))
        if experts:
            shapes[f"blk.{block}.ffn_gate_inp.weight"] = (T.F32, (hidden, experts))
    specs = []
    for name, (storage, ne) in shapes.items():
        values_count = ne[0] * (ne[1] if len(ne) > 1 else 1)
        specs.append((name, ne, storage, bytes(storage.nbytes(values_count))))
    write_model(path, {key: value for key, value in values.items() if value is not None}, specs)
    return summarise(open_model(path))


def test_sizes(tmp_path):
    path = tmp_path / "m.gguf"
    summary = write(path, general__name="Tiny", llama__context_length=4096)
    weights = 2 * 256 * (256 + 512)
    assert (summary.architecture, summary.name, summary.context_length) == ("llama", "Tiny", 4096)
    assert summary.parameters == 256 * 8 + 256 + weights
    assert summary.types == {"Q4_K": weights * 9 // 16, "Q8_0": 2176, "F32": 1024}
    assert summary.tensor_bytes == sum(summary.types.values())
    assert summary.bits_per_weight == round(8 * summary.tensor_bytes / summary.parameters, 3)
    assert list(summary.roles) == ["embedding", "attention", "dense FFN", "norms"]
    assert summary.roles["attention"].types == {"Q4_K": 2 * 256 * 144}
    assert sum(role.nbytes for role in summary.roles.values()) == summary.tensor_bytes
    assert summary.file_bytes == path.stat().st_size and summary.disagreements == []
    assert json.loads(json.dumps(summary.to_json()))["roles"]["norms"]["parameters"] == 256
    text = lines(summary)
    assert any(line.startswith("attention ") and line.endswith("Q4_K") for line in text)
    assert all("\n" not in line and not line.startswith("disagreement") for line in text)


AGREE = {
    "name": ("m-Q4_K_M.gguf", {}),
    "name in lower case": ("tiny.q4_k_s.gguf", {}),
    "xl": ("m-UD-Q4_K_XL.gguf", {}),
    "file type": ("m.gguf", {"general__file_type": 15}),
    "file type guessed": ("m.gguf", {"general__file_type": 1024}),
    "shared name": ("m-IQ3_XS.gguf", {"kind": T.IQ3_XXS}),
    "size": ("m-0.4M.gguf", {"general__size_label": "0.4M"}),
    "expert size": ("m-512x56B-A3B.gguf", {"general__size_label": "512x56B"}),
    "several sizes": ("m-0.4M-context-1M.gguf", {}),
    "tokens": ("m.gguf", {"tokenizer__ggml__tokens": ["a"] * 8}),
    "routers": ("m.gguf", {"experts": 4, "llama__expert_count": 4}),
    "drafts left out": ("m.gguf", {"llama__block_count": 3, "llama__nextn_predict_layers": 1}),
}
DISAGREE = {
    "name": (
        "m-Q4_K_M.gguf",
        {"kind": T.Q8_0},
        "the file name says Q4_K_M, but the type with the most weight bytes is Q8_0 (100 %)",
    ),
    "long name": (
        "m_IQ2_XXS_x.gguf",
        {"kind": T.IQ2_XS},
        "says IQ2_XXS, but the type with the most weight bytes is IQ2_XS",
    ),
    "float name": (
        "m.bf16.gguf",
        {"kind": T.F16},
        "the file name says bf16, but the type with the most weight bytes is F16",
    ),
    "file type": (
        "m.gguf",
        {"general__file_type": 7},
        "general.file_type is 7 (Q8_0), but the type with the most weight bytes is Q4_K",
    ),
    "name size": ("m-7B.gguf", {}, "the file name says 7B, but the file holds 395,520 parameters"),
    "small size": ("tiny-1.1b-chat.gguf", {}, "the file name says 1.1b, but"),
    "label": (
        "m.gguf",
        {"general__size_label": "1M"},
        "general.size_label says 1M, but the file holds 395,520",
    ),
    "missing block": ("m.gguf", {"blocks": 1}, "llama.block_count is 2, but there is no block 1"),
    "missing blocks": (
        "m.gguf",
        {"llama__block_count": 5},
        "block_count is 5, but there is no block 2 and 2 more",
    ),
    "extra block": ("m.gguf", {"blocks": 3}, "llama.block_count is 2, but there is a block 2"),
    "hidden": ("m.gguf", {"llama__embedding_length": 512}, "gives 512, but token_embd is [256, 8]"),
    "vocab": ("m.gguf", {"llama__vocab_size": 9}, "llama.vocab_size gives 9, but token_embd is [256, 8]"),
    "tokens": ("m.gguf", {"tokenizer__ggml__tokens": ["a"]}, "tokenizer.ggml.tokens gives 1, but token_embd"),
    "routers": (
        "m.gguf",
        {"experts": 4, "llama__expert_count": 8},
        "expert_count is 8, but the routers have 4",
    ),
    "shard name": ("m-00002-of-00003.gguf", {}, "the file name says shard 2 of 3, but it is not split"),
}


@pytest.mark.parametrize("case", AGREE)
def test_agreement(tmp_path, case):
    name, changes = AGREE[case]
    assert write(tmp_path / name, **changes).disagreements == []


@pytest.mark.parametrize("case", DISAGREE)
def test_disagreement(tmp_path, case):
    name, changes, wanted = DISAGREE[case]
    summary = write(tmp_path / name, **changes)
    assert len(summary.disagreements) == 1 and wanted in summary.disagreements[0]
    assert lines(summary)[-1] == f"disagreement: {summary.disagreements[0]}"


def test_a_file_without_anything(tmp_path):
    write_model(tmp_path / "m.gguf", {}, [])
    summary = summarise(open_model(tmp_path / "m.gguf"))
    assert (summary.parameters, summary.bits_per_weight, summary.disagreements) == (0, 0.0, [])
    assert "architecture     not given" in lines(summary)


def test_absurd_values_cost_nothing(tmp_path):
    summary = write(tmp_path / "m.gguf", llama__block_count=2**64 - 1, general__name="a\nb\x1b[1m")
    assert summary.disagreements == [
        "llama.block_count is 18446744073709551615, but there is no block 2 and 18446744073709551612 more"
    ]
    assert "name             a?b?[1m" in lines(summary)
    assert roles_of(["blk." + "9" * 5000 + ".attn_q.weight"], 1).of("blk." + "9" * 5000 + ".x") is Role.OTHER


def test_file_types_are_those_of_the_gguf_package():
    theirs = {int(kind): kind.name for kind in gguf.LlamaFileType if kind.name != "GUESSED"}
    assert set(FILE_TYPES) == set(theirs)
    for number, recipe in FILE_TYPES.items():
        assert recipe in RECIPES and recipe in theirs[number]
