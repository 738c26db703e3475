"""The families that can be converted: which one a checkpoint is, and its tensors in file order."""

from collections.abc import Iterator
from math import pi

import numpy as np

from strata.convert import blocks
from strata.convert.blocks import Family, Source, Tensors
from strata.convert.checkpoint import Checkpoint, Floats
from strata.convert.config import Config
from strata.convert.rows import Plane, Planned, Rows
from strata.errors import ModelFileError, UnsupportedError

_FAMILIES = {
    "qwen4_exp": Family("qwen4exp", streams=True),
    "qwen3_5_moe": Family("qwen35moe"),
    "qwen3_5": Family("qwen35", experts=False),
    "qwen3_next": Family("qwen3next", tiled=False),
    "qwen3_moe": Family("qwen3moe", zero_centred=False, hybrid=False, shared_expert=False),
    "qwen2": Family("qwen2", zero_centred=False, hybrid=False, experts=False),
    "qwen3": Family("qwen3", zero_centred=False, hybrid=False, experts=False),
    "llama": Family("llama", zero_centred=False, hybrid=False, experts=False, adjacent_pairs=True),
}
ARCHITECTURES = tuple(family.arch for family in _FAMILIES.values())
# What a text checkpoint may hold beside its weights: the vision tower, and tables that metadata carries.
_LEFT_OUT = ("model.visual.", ".rotary_emb.inv_freq", ".layer_multipliers", ".ngram_heads_")


def find_family(config: Config) -> Family:
    """The family of a checkpoint by its model type; UnsupportedError names those there are."""
    name = config.model_type.removesuffix("_text")
    if name not in _FAMILIES:
        raise UnsupportedError(f"{config.path}: model type {name!r}; supported: {', '.join(_FAMILIES)}")
    family = _FAMILIES[name]
    if config.values.get("mlp_only_layers") or config.values.get("decoder_sparse_step", 1) != 1:
        raise UnsupportedError(f"{config.path}: layers without experts between layers with them")
    return family


def text_name(name: str) -> str:
    """The name in a text-only checkpoint of a multimodal one's `model.language_model.*`."""
    for prefix in ("model.language_model.", "language_model.model."):
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    return name.removeprefix("language_model.")


def tensors(s: Source) -> Iterator[Planned]:
    """The trunk: embedding, head and every layer."""
    yield Planned("token_embd.weight", Plane.HEAD, s.rows("model.embed_tokens.weight"))
    if "lm_head.weight" in s.checkpoint and not s.config.get("tie_word_embeddings", bool, False):
        yield Planned("output.weight", Plane.HEAD, s.rows("lm_head.weight"))
    if s.family.streams:
        yield from blocks.hyper_connection(s, "model.hyper_connection_mixer.", "output_hc_")
    else:
        yield Planned("output_norm.weight", Plane.FLOAT, s.norm("model.norm.weight"))
    ngram = ngram_layer(s.config)
    if ngram is not None:
        yield from blocks.ngram_table(s, f"model.layers.{ngram}.")
    yield from _rope_factors(s.config)
    kinds = (
        s.config.layer_types if s.family.hybrid else ["full_attention"] * s.config.whole("num_hidden_layers")
    )
    for i, kind in enumerate(kinds):
        yield from blocks.block(s, f"model.layers.{i}.", f"blk.{i}.", kind)
        if i == ngram:
            yield from blocks.ngram_layer(s, f"model.layers.{i}.", f"blk.{i}.")


def has_draft(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint holds a draft layer."""
    return any(name.startswith("mtp.") for name in checkpoint.names)


def draft_tensors(s: Source) -> Tensors:
    """The draft layer, numbered after the trunk's last layer."""
    if not has_draft(s.checkpoint):
        raise ModelFileError(f"{s.checkpoint.directory}: holds no draft layer (no tensor named mtp.*)")
    if not s.family.hybrid:
        raise UnsupportedError(f"{s.checkpoint.directory}: a draft layer of {s.family.arch} is not supported")
    return blocks.draft(s, f"blk.{s.config.whole('num_hidden_layers')}.")


def left_over(checkpoint: Checkpoint, planned: list[Planned]) -> list[str]:
    """Names of the checkpoint that no planned tensor uses and that mean something."""
    used = {name for tensor in planned for name in tensor.rows.names}
    return [n for n in checkpoint.names if n not in used and not any(part in n for part in _LEFT_OUT)]


def ngram_layer(config: Config) -> int | None:
    """Index of the layer with n-gram embeddings (the checkpoint counts from 1), or None."""
    listed = config.values.get("ple_layer_ids") or []
    if len(listed) > 1:
        raise UnsupportedError(f"{config.path}: n-gram tables on layers {listed}; one layer is supported")
    return listed[0] - 1 if listed else None


def _rope_factors(config: Config) -> Tensors:
    """Divisors of rotary frequencies that llama3 scaling amounts to, as the file format carries them."""
    if config.rope["rope_type"] != "llama3":
        return
    factors = llama3_factors(config)
    yield Planned("rope_freqs.weight", Plane.FLOAT, Rows((), factors.shape, lambda: iter([factors])))


def llama3_factors(config: Config) -> Floats:
    """float32 [head_dim / 2]: 1 for short waves, the factor for long ones, smoothed between (Llama 3.1)."""
    rope = config.rope
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    original, factor = float(rope["original_max_position_embeddings"]), float(rope["factor"])
    dim = config.head_dim
    wavelength = 2 * pi * float(rope["rope_theta"]) ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
