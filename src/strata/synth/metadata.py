"""Metadata of made-up models: keys that real files of the architecture carry, and a byte-level vocabulary."""

from typing import Any

import numpy as np

from strata.gguf import Typed, ValueType
from strata.synth.geometry import HYBRID, MULTIPLIERS, ROUTED, Geometry


def metadata(g: Geometry, name: str, file_type: int) -> dict[str, Any]:
    """All keys, in the order in which the planted file has always had them."""
    own: dict[str, Any] = {
        "block_count": g.num_blocks,
        "context_length": g.max_position,
        "embedding_length": g.hidden_size,
        "attention.head_count": g.num_heads,
        "attention.head_count_kv": g.num_kv_heads,
        "attention.key_length": g.head_dim,
        "attention.value_length": g.head_dim,
        "attention.layer_norm_rms_epsilon": g.rms_eps,
        "rope.freq_base": g.rope_theta,
        "rope.dimension_count": g.rotary_dim,
    }
    if g.arch in ("qwen35", "qwen35moe", "qwen4exp"):
        own["rope.dimension_sections"] = Typed(list(g.rope_sections), ValueType.INT32)
    own |= _feed_forward(g)
    if g.arch in HYBRID:
        own |= _delta(g)
    if g.arch == "qwen4exp":
        own |= _streams(g)
        if g.ngram_layer is not None:
            own |= _ngram(g, g.ngram_layer)
    if g.draft:
        own["nextn_predict_layers"] = 1
    head: dict[str, Any] = {
        "general.architecture": g.arch,
        "general.name": name,
        "general.file_type": file_type,
        "general.quantization_version": 2,
    }
    return head | {f"{g.arch}.{key}": value for key, value in own.items()} | _vocabulary(g)


def _feed_forward(g: Geometry) -> dict[str, Any]:
    if g.arch not in ROUTED:
        return {"feed_forward_length": g.intermediate_size}
    found = {
        "expert_count": g.num_experts,
        "expert_used_count": g.num_experts_per_tok,
        "expert_feed_forward_length": g.moe_intermediate_size,
    }
    if g.arch != "qwen3moe":
        found["expert_shared_feed_forward_length"] = g.shared_intermediate_size
    return found | {"feed_forward_length": g.moe_intermediate_size}


def _delta(g: Geometry) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": g.conv_kernel,
        "ssm.state_size": g.state_dim,
        "ssm.group_count": g.key_heads,
        "ssm.time_step_rank": g.value_heads,
        "ssm.inner_size": g.value_heads * g.state_dim,
        "full_attention_interval": g.interval,
    }


def _streams(g: Geometry) -> dict[str, Any]:
    sparse = [g.is_attention(i) and i < g.num_layers for i in range(g.num_blocks)]
    return {
        "hyper_connection.count": g.num_streams,
        "hyper_connection.low_rank": g.stream_rank,
        "attention.indexer.head_count": g.index_heads,
        "attention.indexer.key_length": g.index_dim,
        "attention.indexer.top_k": g.index_budget,
        "attention.compress_ratios": Typed([g.index_ratio if on else 0 for on in sparse], ValueType.INT32),
    }


def _ngram(g: Geometry, layer: int) -> dict[str, Any]:
    sizes = g.ngram_sizes
    found: dict[str, Any] = {
        "ple.layers": [layer],
        "ple.ngram_size": 3,
        "ple.heads_per_ngram": g.heads_per_ngram,
        "ple.conv_kernel": 4,
        "ple.eos_token_id": g.ngram_eos,
    }
    if g.image_token is not None:
        found["ple.image_token_id"] = g.image_token
    return found | {
        "ple.layer_multipliers": Typed(MULTIPLIERS, ValueType.UINT64),
        "ple.head_offsets": Typed([0, *np.cumsum(sizes[:-1]).tolist()], ValueType.UINT64),
        "ple.head_vocab_sizes": Typed(sizes, ValueType.UINT64),
        "embedding_length_per_layer_input": g.ngram_width,
    }


def _vocabulary(g: Geometry) -> dict[str, Any]:
    """One token for each byte, made-up words, and control tokens from the base end of text on."""
    tokens = [f"t{i}" for i in range(g.vocab_size)]
    characters = byte_characters()[: g.vocab_size]
    tokens[: len(characters)] = characters
    kinds = [1] * g.vocab_size
    special = range(g.bos, min(g.vocab_size, g.bos + 33))
    for i in special:
        tokens[i], kinds[i] = f"<|special_{i}|>", 3
    pre = {"llama": "smollm", "qwen3": "qwen2", "qwen3moe": "qwen2", "qwen3next": "qwen2"}.get(
        g.arch, "qwen35"
    )
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed(kinds, ValueType.INT32),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": g.eos,
        "tokenizer.ggml.bos_token_id": g.bos,
        "tokenizer.ggml.padding_token_id": g.bos,
        "tokenizer.ggml.add_bos_token": False,
    }


def byte_characters() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE: printable ones first, as they are."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = range(256, 256 + 256 - len(printable))
    return [chr(code) for code in (*printable, *shifted)]
