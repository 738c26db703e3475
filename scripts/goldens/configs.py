"""Tiny configurations in the words of transformers; rows that get quantised are multiples of 32."""

from typing import Any

VOCAB, BASE_EOS, CHAT_EOS = 128, 124, 126

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": CHAT_EOS,
    "tie_word_embeddings": False,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA = COMMON | {
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
QWEN3MOE = COMMON | {
    "num_hidden_layers": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
TWO_LAYERS = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
THREE_LAYERS = {"num_hidden_layers": 3, "layer_types": ["linear_attention"] * 2 + ["full_attention"]}
SECTIONS = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
HYBRID = (
    COMMON
    | TWO_LAYERS
    | {
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    }
)
QWEN35 = HYBRID | {"rope_parameters": HYBRID["rope_parameters"] | SECTIONS}
YARN = {
    "max_position_embeddings": 128,
    "rope_parameters": QWEN35["rope_parameters"]
    | {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32},
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
QWEN4EXP = (
    QWEN35
    | EXPERTS
    | {
        "linear_num_value_heads": 6,
        "eos_token_id": BASE_EOS,
        "norm_topk_prob": True,
        "output_gate_type": "sigmoid",
        "hc_count": 4,
        "hc_lowrank": 8,
        "ple_layer_ids": [1],
        "ple_embed_dim": 64,
        "ngram_size": 3,
        "heads_per_ngram": 4,
        "ngram_vocab_size_base": 20,
        "make_ngram_vocab_size_divisible_by": 16,
        "split_ngram_parts": 4,
        "seed": 1234,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 32,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    }
)
