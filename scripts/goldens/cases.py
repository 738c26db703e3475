"""The table of golden cases: a tiny model each, and what it is there to catch."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scripts.goldens.configs import (
    EXPERTS,
    HYBRID,
    LLAMA,
    QWEN3MOE,
    QWEN4EXP,
    QWEN35,
    THREE_LAYERS,
    TWO_LAYERS,
    YARN,
)

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Case:
    """`config`: arguments of the transformers configuration; `types`: patterns of GGUF names to types."""

    name: str
    family: str
    config: dict[str, Any]
    covers: str
    seed: int
    num_tokens: int = 48
    eos_at: tuple[int, ...] = ()
    types: dict[str, str] = field(default_factory=dict)
    draft: str | None = None  # inside or separate
    draft_ratio: int = 0  # tokens of a block that the draft layer's indexer ranks; 0: it is dense
    merged_experts: bool = False  # gate and up in one tensor
    checkpoint: bool = False  # kept as a bfloat16 Hugging Face checkpoint instead of a GGUF file
    margin: float = 0.05  # least gap, in router logits and block scores, between taken and left out

    @property
    def num_layers(self) -> int:
        """Blocks of the trunk."""
        return int(self.config["num_hidden_layers"])

    @property
    def norms_hold_offsets(self) -> bool:
        """True where the checkpoint's norms hold w of (1 + w)."""
        return self.family not in ("llama", "qwen3moe")


LLAMA_CASES = (
    Case(
        "llama", "llama", LLAMA | {"num_hidden_layers": 2},
        "grouped queries, heads wider than hidden / heads, q and k rows in adjacent pairs", 1,
    ),
    Case(
        "llama-tied-biases-linear", "llama",
        LLAMA | {
            "tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 4, "head_dim": 8,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        },
        "tied embedding, biases on q, k, v and output, linear rope scaling", 2,
    ),
    Case(
        "llama-llama3", "llama",
        LLAMA | {"rope_parameters": {
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        }},
        "llama3 rope scaling, as divisors in rope_freqs.weight", 3, num_tokens=96,
    ),
    Case(
        "llama-yarn", "llama",
        LLAMA | {"max_position_embeddings": 256, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
        }},
        "YaRN rope scaling, past the trained context", 4, num_tokens=96,
    ),
    Case(
        "llama-quantised", "llama",
        LLAMA | {"hidden_size": 256, "intermediate_size": 256, "num_key_value_heads": 1, "head_dim": 64},
        "K-quants and I-quants of 256 values, a type for each plane", 5,
        types={
            "token_embd": "Q6_K", "^output": "Q6_K", "attn_q": "Q4_K", "attn_k": "Q3_K", "attn_v": "Q6_K",
            "attn_output": "Q5_K", "ffn_gate": "IQ4_XS", "ffn_up": "IQ3_S", "ffn_down": "Q2_K",
        },
    ),
)  # fmt: skip
QWEN3_CASES = (
    Case("qwen3moe", "qwen3moe", QWEN3MOE, "router, q and k norms, no shared expert", 11, num_tokens=64),
    Case(
        "qwen3moe-quantised", "qwen3moe",
        QWEN3MOE | {
            "hidden_size": 256, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
        },
        "experts in types that differ by layer and plane, down rows of 96 that 256-blocks cannot hold", 12,
        margin=0.1,
        types={
            r"blk\.0\.ffn_(gate|up)_exps": "IQ3_XXS", r"blk\.0\.ffn_down_exps": "IQ4_NL",
            r"blk\.1\.ffn_(gate|up)_exps": "IQ2_XS", r"blk\.1\.ffn_down_exps": "Q5_1",
            "attn_[qkv]": "Q5_K", "": "Q8_0",
        },
    ),
    Case(
        "qwen3next", "qwen3next", HYBRID | EXPERTS,
        "grouped value heads, b and a in one tensor, plain rope, chunk border at 64, draft layer inside", 41,
        num_tokens=72, draft="inside",
    ),
    Case(
        "qwen3next-quantised", "qwen3next",
        HYBRID | EXPERTS | {
            "hidden_size": 64, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
        },
        "Q2_0 experts, Q5_0 and IQ4_NL elsewhere", 42, margin=0.2,
        types={
            "_exps": "Q2_0", "ssm_ba": "F32", "attn_(qkv|q)": "Q5_0", "attn_gate": "IQ4_NL",
            "token_embd": "IQ4_NL", "": "Q8_0",
        },
    ),
)  # fmt: skip
QWEN35_CASES = (
    Case(
        "qwen35", "qwen35", QWEN35 | THREE_LAYERS | {"intermediate_size": 64},
        "dense hybrid, two value heads a key head, chunk borders at 64 and 128, draft layer inside", 21,
        num_tokens=136, draft="inside",
    ),
    Case(
        "qwen35-quantised", "qwen35",
        QWEN35 | THREE_LAYERS | {"hidden_size": 64, "intermediate_size": 96, "linear_num_value_heads": 6},
        "dense hybrid in 32-blocks, three value heads a key head, draft layer in a file of its own", 22,
        draft="separate",
        types={
            "ssm_(alpha|beta)": "BF16", r"blk\.0\.ffn_down": "Q5_0", r"blk\.1\.ffn_down": "Q4_1",
            "attn_qkv": "Q4_0", "attn_gate": "Q5_1", "eh_proj": "Q4_0", "": "Q8_0",
        },
    ),
    Case(
        "qwen35moe", "qwen35moe", QWEN35 | EXPERTS | {"linear_num_value_heads": 6},
        "three value heads a key head, shared expert, chunk border at 64, draft layer inside", 31,
        num_tokens=72, draft="inside",
    ),
    Case(
        "qwen35moe-quantised", "qwen35moe",
        QWEN35 | EXPERTS | YARN | {"hidden_size": 256, "num_experts": 3, "moe_intermediate_size": 96},
        "Q4_K experts with Q5_1 down rows of 96, YaRN on a quarter of the head", 32, margin=0.1,
        types={
            "ffn_(gate|up)_exps": "Q4_K", r"blk\.0\.ffn_down_exps": "Q5_1", r"blk\.1\.ffn_down_exps": "Q8_0",
            "ssm_(alpha|beta)": "F32", "attn_(qkv|q)": "Q5_K", "ssm_out|attn_output|down_shexp": "Q8_0",
            "": "Q6_K",
        },
    ),
)  # fmt: skip
QWEN4EXP_CASES = (
    Case(
        "qwen4exp", "qwen4exp",
        QWEN4EXP | THREE_LAYERS | {"num_experts": 6, "num_experts_per_tok": 3, "ple_layer_ids": [2]},
        "four streams, three value heads a key head, n-gram table with end-of-text inside n-grams, sparse "
        "attention that drops blocks, chunk borders at 64 and 128, dense draft layer inside", 51,
        num_tokens=200, eos_at=(0, 7, 8, 20, 22, 62, 64, 127, 150), draft="inside",
    ),
    Case(
        "qwen4exp-two-streams", "qwen4exp",
        QWEN4EXP | YARN | {"hc_count": 2, "linear_num_value_heads": 4, "ple_layer_ids": []},
        "two streams, two value heads a key head, no n-gram table, YaRN, F16 weights, gate and up experts in "
        "one tensor, sparse draft layer in a file of its own", 52,
        num_tokens=72, draft="separate", draft_ratio=4, merged_experts=True,
        types={"hc_.*inject": "F32", "": "F16"},
    ),
    Case(
        "qwen4exp-quantised", "qwen4exp",
        QWEN4EXP | {
            "hidden_size": 256, "num_experts": 3, "moe_intermediate_size": 128, "hc_lowrank": 32,
            "shared_expert_intermediate_size": 64, "ple_embed_dim": 128, "heads_per_ngram": 2,
        },
        "the types of published files: IQ3_XXS with Q2_0 down rows of 128, Q4_K with IQ4_NL, an IQ4_NL "
        "n-gram table, BF16 indexer and injection", 53, num_tokens=56, eos_at=(9, 11, 30), margin=0.1,
        types={
            r"blk\.0\.ffn_(gate|up)_exps": "IQ3_XXS", r"blk\.0\.ffn_down_exps": "Q2_0",
            r"blk\.1\.ffn_(gate|up)_exps": "Q4_K", r"blk\.1\.ffn_down_exps": "IQ4_NL",
            "indexer|inject|ssm_(alpha|beta)": "BF16", "hc_.*down": "Q4_K", "hc_.*up": "Q5_0",
            "per_layer_token_embd": "IQ4_NL", "ple_key": "Q4_0",
            "ple_value|_shexp|ssm_out|attn_output": "Q8_0", "": "Q6_K",
        },
    ),
)  # fmt: skip
SMALL = TWO_LAYERS | {"num_experts": 3}
CHECKPOINT_CASES = (
    Case("checkpoint-llama", "llama", LLAMA, "as transformers saves it", 61, 24, checkpoint=True),
    Case(
        "checkpoint-qwen3next", "qwen3next", HYBRID | EXPERTS | SMALL,
        "packed qkvz and ba, experts one by one, and a draft layer", 62, 24,
        draft="inside", checkpoint=True,
    ),
    Case(
        "checkpoint-qwen4exp", "qwen4exp", QWEN4EXP | SMALL,
        "experts one by one, the n-gram table in parts, and a draft layer", 63, 24,
        eos_at=(5,), draft="inside", checkpoint=True,
    ),
)  # fmt: skip
CASES = LLAMA_CASES + QWEN3_CASES + QWEN35_CASES + QWEN4EXP_CASES + CHECKPOINT_CASES
