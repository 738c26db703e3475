"""Metadata of the GGUF file from `config.json` (keys of MODEL_SPEC 3.1)."""

from typing import Any

import numpy as np

from strata.convert.blocks import Family
from strata.convert.checkpoint import Checkpoint, read_json
from strata.convert.config import Config
from strata.convert.families import ngram_layer
from strata.convert.ngram import head_sizes, layer_multipliers
from strata.errors import UnsupportedError
from strata.gguf import Typed, ValueType


def architecture_metadata(
    family: Family, config: Config, checkpoint: Checkpoint, with_draft: bool
) -> dict[str, Any]:
    """All `<arch>.*` keys; `with_draft` counts the draft layer as a block."""
    found = _common(family, config) | _rope(family, config)
    layers = config.whole("num_hidden_layers")
    found["block_count"] = layers + with_draft
    if with_draft:
        found["nextn_predict_layers"] = 1
    if family.experts:
        found |= _experts(family, config)
    if family.hybrid:
        found |= _hybrid(config)
    if family.streams:
        found |= _streams(config, with_draft)
    if (ngram := ngram_layer(config)) is not None:
        found |= _ngram(config, checkpoint, ngram)
    return {f"{family.arch}.{key}": value for key, value in found.items()}


def _common(family: Family, c: Config) -> dict[str, Any]:
    found: dict[str, Any] = {
        "context_length": c.whole("max_position_embeddings"),
        "embedding_length": c.whole("hidden_size"),
        "attention.head_count": c.whole("num_attention_heads"),
        "attention.head_count_kv": c.whole("num_key_value_heads", c.whole("num_attention_heads")),
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps", float),
    }
    if family.experts:
        found["feed_forward_length"] = c.whole("intermediate_size", c.whole("moe_intermediate_size"))
    else:
        found["feed_forward_length"] = c.whole("intermediate_size")
    if family.arch == "llama":
        found["vocab_size"] = c.whole("vocab_size")
    return found


def _rope(family: Family, c: Config) -> dict[str, Any]:
    rope = c.rope
    found: dict[str, Any] = {
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(c.head_dim * rope["partial_rotary_factor"])
        if family.hybrid
        else c.head_dim,
    }
    if sections := rope.get("mrope_section"):
        found["rope.dimension_sections"] = Typed([*sections, 0][:4], ValueType.INT32)
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
        if original := rope.get("original_max_position_embeddings"):
            found["rope.scaling.original_context_length"] = original
    elif kind not in ("default", "mrope", "llama3"):
        raise UnsupportedError(f"{c.path}: rope type {kind!r}; supported: default, linear, yarn, llama3")
    return found


def _experts(family: Family, c: Config) -> dict[str, Any]:
    found: dict[str, Any] = {
        "expert_count": c.whole("num_experts", c.values.get("num_local_experts") or 0),
        "expert_used_count": c.whole("num_experts_per_tok"),
        "expert_feed_forward_length": c.whole("moe_intermediate_size"),
    }
    if family.shared_expert:
        found["expert_shared_feed_forward_length"] = c.whole("shared_expert_intermediate_size")
    if (normalised := c.values.get("norm_topk_prob")) is not None:
        found["expert_weights_norm"] = bool(normalised)
    return found


def _hybrid(c: Config) -> dict[str, Any]:
    heads, width = c.whole("linear_num_value_heads"), c.whole("linear_value_head_dim")
    if width != c.whole("linear_key_head_dim"):
        raise UnsupportedError(
            f"{c.path}: key heads of {c.whole('linear_key_head_dim')}, value heads of {width}: not equal"
        )
    found: dict[str, Any] = {
        "ssm.conv_kernel": c.whole("linear_conv_kernel_dim", 4),
        "ssm.state_size": width,
        "ssm.group_count": c.whole("linear_num_key_heads"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * width,
    }
    recurrent = [kind == "linear_attention" for kind in c.layer_types]
    interval = recurrent.index(False) + 1 if False in recurrent else len(recurrent) + 1
    if recurrent == [bool((i + 1) % interval) for i in range(len(recurrent))]:
        return found | {"full_attention_interval": interval}
    return found | {"attention.recurrent_layers": recurrent}


def _streams(c: Config, with_draft: bool) -> dict[str, Any]:
    if (gate := c.values.get("output_gate_type") or c.values.get("hidden_act")) != "sigmoid":
        raise UnsupportedError(f"{c.path}: output gate {gate!r}; qwen4exp files have the sigmoid")
    ratio = c.whole("indexer_compress_ratio")
    ratios = [0 if kind == "linear_attention" else ratio for kind in c.layer_types] + [0] * with_draft
    return {
        "hyper_connection.count": c.whole("hc_count", 4),
        "hyper_connection.low_rank": c.whole("hc_lowrank", 320),
        "attention.indexer.head_count": c.whole("indexer_n_heads"),
        "attention.indexer.key_length": c.whole("indexer_head_dim"),
        "attention.indexer.top_k": c.whole("indexer_budget"),
        "attention.compress_ratios": Typed(ratios, ValueType.INT32),
    }


def _ngram(c: Config, checkpoint: Checkpoint, layer: int) -> dict[str, Any]:
    """The table's keys; hash constants from the checkpoint if it has them, else as training derives them."""
    size, per_order = c.whole("ngram_size", 3), c.whole("heads_per_ngram", 8)
    prefix = f"model.layers.{layer}.ple.ple_embedding."
    heads = (size - 1) * per_order

    def stored(name: str) -> list[int] | None:
        return [int(n) for n in checkpoint.raw(prefix + name)] if prefix + name in checkpoint else None

    sizes = stored("ngram_heads_vocab_sizes") or head_sizes(
        c.whole("ngram_vocab_size_base", 20_000_000), heads
    )
    offsets = stored("ngram_heads_offsets") or [0, *np.cumsum(sizes[:-1]).tolist()]
    multipliers = stored("layer_multipliers") or layer_multipliers(
        c.whole("vocab_size"), size, c.get("seed", int, 1234)
    )
    found: dict[str, Any] = {
        "ple.layers": [layer],
        "ple.ngram_size": size,
        "ple.heads_per_ngram": per_order,
        "ple.conv_kernel": c.whole("ple_conv_kernel_size", 4),
        "ple.eos_token_id": c.token("eos_token_id"),
        "ple.layer_multipliers": Typed(multipliers, ValueType.UINT64),
        "ple.head_offsets": Typed(offsets, ValueType.UINT64),
        "ple.head_vocab_sizes": Typed(sizes, ValueType.UINT64),
        "embedding_length_per_layer_input": c.whole("ple_embed_dim", c.whole("hidden_size")) // heads,
    }
    image = c.outer.get("image_token_id")
    return found if image is None else found | {"ple.image_token_id": image}


def sampling_metadata(config: Config) -> dict[str, Any]:
    """`general.sampling.*` from `generation_config.json`, where there is one."""
    path = config.path.with_name("generation_config.json")
    given = read_json(path) if path.is_file() else {}
    found = {}
    for name, key, kind in (
        ("temperature", "temp", float),
        ("top_p", "top_p", float),
        ("top_k", "top_k", int),
    ):
        if given.get(name) is not None:
            found[f"general.sampling.{key}"] = kind(given[name])
    return found
