"""Sizes of the model; names are those of the checkpoint's `config.json`."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ModelConfig:
    """A qwen4exp model. Defaults are strata-mini's."""

    vocab_size: int = 12_032
    hidden_size: int = 256
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rope_theta: float = 1e5
    rotary_dim: int = 32
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 6
    linear_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    num_experts: int = 64
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 64
    hc_count: int = 4
    hc_lowrank: int = 32
    ngram_layer: int = 1  # counted from 0
    ple_embed_dim: int = 256
    ngram_vocab_size_base: int = 12_500
    heads_per_ngram: int = 4
    ngram_size: int = 3
    ple_conv_kernel_size: int = 4
    indexer_n_heads: int = 4
    indexer_head_dim: int = 32
    indexer_budget: int = 512
    indexer_compress_ratio: int = 4
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-6
    eos_token_id: int = 12_017  # ends n-grams: the end of text, not the end of a turn
    seed: int = 1234

    @property
    def layer_types(self) -> list[str]:
        """linear_attention or full_attention, by layer."""
        every = self.full_attention_interval
        return [
            "linear_attention" if (i + 1) % every else "full_attention" for i in range(self.num_hidden_layers)
        ]

    @property
    def wide(self) -> int:
        """Width of the residual: all streams."""
        return self.hc_count * self.hidden_size

    @property
    def key_width(self) -> int:
        """Width of all keys of a delta layer."""
        return self.linear_num_key_heads * self.linear_head_dim

    @property
    def value_width(self) -> int:
        """Width of all values of a delta layer."""
        return self.linear_num_value_heads * self.linear_head_dim

    @property
    def mrope_section(self) -> list[int]:
        """Pairs of each axis; of text all three are equal, so that only their sum matters."""
        pairs = self.rotary_dim // 2
        other = pairs // 3
        return [pairs - 2 * other, other, other]

    def transformers(self) -> dict[str, Any]:
        """Arguments of transformers' `Qwen4ExpTextConfig`, and the text part of `config.json`."""
        found = asdict(self)
        for name in ("rope_theta", "rotary_dim", "linear_head_dim", "ngram_layer", "full_attention_interval"):
            del found[name]
        return found | {
            "model_type": "qwen4_exp_text",
            "layer_types": self.layer_types,
            "linear_key_head_dim": self.linear_head_dim,
            "linear_value_head_dim": self.linear_head_dim,
            "output_gate_type": "sigmoid",
            "norm_topk_prob": True,
            "indexer_kv_heads": 1,
            "ple_layer_ids": [self.ngram_layer + 1],
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.rotary_dim / self.head_dim,
                "mrope_section": self.mrope_section,
                "mrope_interleaved": True,
            },
        }


TINY = ModelConfig(
    vocab_size=256,
    hidden_size=64,
    num_hidden_layers=4,
    head_dim=32,
    rotary_dim=8,
    linear_head_dim=16,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
    hc_lowrank=8,
    ple_embed_dim=64,
    ngram_vocab_size_base=100,
    indexer_n_heads=2,
    indexer_budget=8,
    eos_token_id=250,
    max_position_embeddings=512,
)
