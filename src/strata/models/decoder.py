"""Numbers that plain decoders share: sizes, attention heads, rotary embedding."""

from dataclasses import dataclass

from strata.errors import ModelFileError
from strata.gguf import ModelFile
from strata.models.metadata import Metadata, RopeConfig
from strata.models.weights import WeightReader


@dataclass(frozen=True)
class DecoderConfig:
    """Numbers of a model; counts come from tensors where tensors have them."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_eps: float
    rope: RopeConfig


def read_decoder_config(file: ModelFile, architecture: str) -> DecoderConfig:
    """The metadata under `architecture.`; ModelFileError where a key is missing, absurd, or the heads do not divide."""
    m = Metadata(file, architecture)
    hidden, heads = m.positive("embedding_length"), m.positive("attention.head_count")
    kv_heads = m.positive("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise ModelFileError(
            f"{file.path}: {heads} query heads over {kv_heads} key heads is not a whole ratio"
        )
    head_dim = m.positive("attention.key_length", hidden // heads)
    return DecoderConfig(
        num_layers=m.positive("block_count"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=WeightReader(file).get("token_embd.weight", -1, hidden).shape[0],
        rms_eps=m.real("attention.layer_norm_rms_epsilon"),
        rope=RopeConfig.read(m, head_dim),
    )
