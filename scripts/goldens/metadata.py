"""GGUF metadata of a case: the keys that real files of its architecture carry, and a small vocabulary."""

from typing import Any

import numpy as np
from scripts.goldens import tokenizer
from scripts.goldens.cases import Array, Case
from scripts.goldens.configs import BASE_EOS, CHAT_EOS


def metadata(case: Case, state: dict[str, Array], draft: str | None) -> dict[str, Any]:
    """`draft`: None for a trunk alone, "inside" or "separate" for files that hold the draft block."""
    c, blocks = case.config, case.num_layers + (draft is not None)
    heads = c["num_attention_heads"]
    head_dim = c.get("head_dim", c["hidden_size"] // heads)
    own: dict[str, Any] = {
        "block_count": blocks,
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]),
        "rope.dimension_count": int(head_dim * c["rope_parameters"].get("partial_rotary_factor", 1.0)),
        "rope.freq_base": float(c["rope_parameters"]["rope_theta"]),
    }
    if "head_dim" in c:
        own |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    own |= _rope(c["rope_parameters"]) | _feed_forward(c)
    if "linear_num_key_heads" in c:
        own |= _delta(c)
    if case.family == "qwen4exp":
        own |= _streams(case, blocks) | _ngram(case, state)
    if draft:
        own["nextn_predict_layers"] = 1
    head = {"general.architecture": case.family, "general.name": f"golden {case.name}"}
    return head | {f"{case.family}.{key}": value for key, value in own.items()} | _vocabulary(case)


def _rope(parameters: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if "mrope_section" in parameters:
        out["rope.dimension_sections"] = np.array([*parameters["mrope_section"], 0], np.int32)
    if parameters["rope_type"] in ("linear", "yarn"):
        out["rope.scaling.type"] = parameters["rope_type"]
        out["rope.scaling.factor"] = float(parameters["factor"])
    if parameters["rope_type"] == "yarn":
        out["rope.scaling.original_context_length"] = parameters["original_max_position_embeddings"]
    return out


def _feed_forward(c: dict[str, Any]) -> dict[str, Any]:
    if "num_experts" not in c:
        return {"feed_forward_length": c["intermediate_size"]}
    out = {
        "expert_count": c["num_experts"],
        "expert_used_count": c["num_experts_per_tok"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
    }
    if "shared_expert_intermediate_size" in c:
        out["expert_shared_feed_forward_length"] = c["shared_expert_intermediate_size"]
    return out


def _delta(c: dict[str, Any]) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": 4,
        "ssm.state_size": c["linear_key_head_dim"],
        "ssm.group_count": c["linear_num_key_heads"],
        "ssm.time_step_rank": c["linear_num_value_heads"],
        "ssm.inner_size": c["linear_num_value_heads"] * c["linear_value_head_dim"],
        "full_attention_interval": c["layer_types"].index("full_attention") + 1,
    }


def _streams(case: Case, blocks: int) -> dict[str, Any]:
    c = case.config
    ratios = [c["indexer_compress_ratio"] if kind == "full_attention" else 0 for kind in c["layer_types"]]
    ratios += [case.draft_ratio] * (blocks - case.num_layers)
    return {
        "hyper_connection.count": c["hc_count"],
        "hyper_connection.low_rank": c["hc_lowrank"],
        "attention.indexer.head_count": c["indexer_n_heads"],
        "attention.indexer.key_length": c["indexer_head_dim"],
        "attention.indexer.top_k": c["indexer_budget"],
        "attention.compress_ratios": np.array(ratios, np.int32),
    }


def _ngram(case: Case, state: dict[str, Array]) -> dict[str, Any]:
    c = case.config
    if not c["ple_layer_ids"]:
        return {}
    prefix = f"model.layers.{c['ple_layer_ids'][0] - 1}.ple.ple_embedding."
    return {
        "ple.layers": np.array([layer - 1 for layer in c["ple_layer_ids"]], np.uint32),
        "ple.ngram_size": c["ngram_size"],
        "ple.heads_per_ngram": c["heads_per_ngram"],
        "ple.conv_kernel": 4,
        "ple.eos_token_id": c["eos_token_id"],
        "ple.layer_multipliers": state[prefix + "layer_multipliers"].astype(np.uint64),
        "ple.head_offsets": state[prefix + "ngram_heads_offsets"].astype(np.uint64),
        "ple.head_vocab_sizes": state[prefix + "ngram_heads_vocab_sizes"].astype(np.uint64),
        "embedding_length_per_layer_input": c["ple_embed_dim"] // (2 * c["heads_per_ngram"]),
    }


def _vocabulary(case: Case) -> dict[str, Any]:
    texts, types = tokenizer.tokens()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": tokenizer.pre_tokenizer(case.family),
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": tokenizer.MERGES,
        "tokenizer.ggml.eos_token_id": CHAT_EOS,
        "tokenizer.ggml.padding_token_id": BASE_EOS,
        "tokenizer.ggml.add_bos_token": False,
    }
