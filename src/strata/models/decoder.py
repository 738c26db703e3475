"""Numbers that plain decoders share: sizes, attention heads, rotary embedding and its scaling."""

from dataclasses import dataclass

import numpy as np

from strata.errors import ModelFileError, UnsupportedError
from strata.gguf import ModelFile
from strata.models.weights import WeightReader
from strata.ops import RopeScaling


@dataclass(frozen=True)
class DecoderConfig:
    """Numbers of a model; counts come from tensors where tensors have them."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    vocab_size: int
    max_position: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling


def read_decoder_config(file: ModelFile, architecture: str) -> DecoderConfig:
    """The metadata under `architecture.`; ModelFileError where a key is missing or the heads do not divide."""

    def whole(key: str, *default: int) -> int:
        return file.get(f"{architecture}.{key}", int, *default)

    def real(key: str, *default: float) -> float:
        return file.get(f"{architecture}.{key}", float, *default)

    hidden, heads = whole("embedding_length"), whole("attention.head_count")
    if heads < 1 or hidden < 1:
        raise ModelFileError(
            f"{file.path}: {heads} heads and a hidden size of {hidden}; both must be positive"
        )
    kv_heads, head_dim = (
        whole("attention.head_count_kv", heads),
        whole("attention.key_length", hidden // heads),
    )
    if kv_heads < 1 or heads % kv_heads:
        raise ModelFileError(
            f"{file.path}: {heads} query heads over {kv_heads} key heads is not a whole ratio"
        )
    rotary_dim, context = whole("rope.dimension_count", head_dim), whole("context_length")
    return DecoderConfig(
        num_layers=whole("block_count"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        vocab_size=WeightReader(file).get("token_embd.weight", -1, hidden).shape[0],
        max_position=context,
        rms_eps=real("attention.layer_norm_rms_epsilon"),
        rope_theta=real("rope.freq_base", 10_000.0),
        rope_scaling=read_rope_scaling(file, architecture, rotary_dim, context),
    )


def read_rope_scaling(file: ModelFile, architecture: str, rotary_dim: int, context: int) -> RopeScaling:
    """linear, yarn, or llama3 (whose divisors a file carries as `rope_freqs.weight`)."""
    prefix = f"{architecture}.rope.scaling."
    kind = file.get(prefix + "type", str, "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedError(
            f"{file.path}: rope scaling {kind!r}; supported: none, linear, yarn, llama3 factors"
        )
    factors = WeightReader(file).maybe("rope_freqs.weight", rotary_dim // 2)
    return RopeScaling(
        kind=kind,
        factor=file.get(prefix + "factor", float, 1.0),
        original_context=file.get(prefix + "original_context_length", int, context),
        attention_factor=file.get(prefix + "attn_factor", float, 1.0),
        factors=None if factors is None else np.asarray(factors.decode(), np.float32),
    )
