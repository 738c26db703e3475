"""Hugging Face tensors to GGUF tensors: names, splits, joins and permutations (llama.cpp's conventions).

Values only move here, so that the same functions run on arrays of indices and tell where each value came
from; `stored_value` holds the two changes of value.
"""

import re

import numpy as np
from scripts.goldens.cases import Array, Case

State = dict[str, Array]

SIMPLE = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.o_proj.bias": "attn_output.bias",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.indexer.q_layernorm.weight": "indexer.q_norm.weight",
    "self_attn.indexer.k_layernorm.weight": "indexer.k_norm.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "ple.key_proj.weight": "ple_key.weight",
    "ple.value_proj.weight": "ple_value.weight",
    "ple.norm_key.weight": "ple_norm_key.weight",
    "ple.norm_query.weight": "ple_norm_query.weight",
    "ple.norm_conv.weight": "ple_norm_conv.weight",
}
MIXER = {
    "hc_norm.weight": "norm.weight",
    "input_mix_weight_down.weight": "down.weight",
    "input_mix_weight_up.weight": "up.weight",
    "block_inject_weight.weight": "inject.weight",
}
for _side, _short in (("attn", "attn"), ("mlp", "ffn")):
    SIMPLE |= {f"{_side}_hyper_connection.{old}": f"hc_{_short}_{new}" for old, new in MIXER.items()}
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "model.norm.weight": "output_norm.weight",
    **{f"model.hyper_connection_mixer.{old}": f"output_hc_{new}" for old, new in MIXER.items()},
}
DRAFT = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    **{f"mtp.hyper_connection_mixer.{old}": f"nextn.hc_head_{new}" for old, new in MIXER.items()},
}


def gguf_layout(case: Case, state: State) -> State:
    """All tensors under their GGUF names, rows first; of `mtp.*` those of the draft block."""
    out, done = {}, set()
    for name in state:
        if match := re.match(r"(model|mtp)\.layers\.(\d+)\.(.+)", name):
            layer = int(match[2]) + (case.num_layers if match[1] == "mtp" else 0)
            prefix = name.removesuffix(match[3])
            if prefix not in done:
                done.add(prefix)
                part = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
                out |= _block(case, f"blk.{layer}.", part)
        elif name in TOP:
            out[TOP[name]] = state[name]
        elif name in DRAFT:
            out[f"blk.{case.num_layers}.{DRAFT[name]}"] = state[name]
    if "mtp.fc_embedding.weight" in state:
        both = [state["mtp.fc_embedding.weight"], state["mtp.fc_hidden.weight"]]
        out[f"blk.{case.num_layers}.nextn.eh_proj.weight"] = np.concatenate(both, axis=1)
    return out


def stored_value(case: Case, name: str, values: Array) -> Array:
    """Norms that hold offsets get their 1; `ssm_a` is -exp(A_log)."""
    if name.endswith("ssm_a"):
        return -np.exp(values)
    if "norm" in name and case.norms_hold_offsets and not name.endswith("ssm_norm.weight"):
        return values + np.float32(1)
    return values


def _block(case: Case, blk: str, part: State) -> State:
    out = {blk + new: part[old] for old, new in SIMPLE.items() if old in part}
    if "post_attention_layernorm.weight" in part:
        new = "ffn_norm.weight" if case.family in ("llama", "qwen3moe") else "post_attention_norm.weight"
        out[blk + new] = part["post_attention_layernorm.weight"]
    if case.family == "llama":
        for letter, count in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            for kind in ("weight", "bias"):
                if (name := f"{blk}attn_{letter}.{kind}") in out:
                    out[name] = adjacent_pairs(out[name], case.config[count])
    out |= _experts(case, blk, part) | _ngram(blk, part)
    if "linear_attn.A_log" in part:
        out |= _delta(case, blk, part)
    if (qk := part.get("self_attn.indexer.index_qk_proj.weight")) is not None:
        split = case.config["indexer_n_heads"] * case.config["indexer_head_dim"]
        out[blk + "indexer.q_proj.weight"], out[blk + "indexer.k_proj.weight"] = qk[:split], qk[split:]
    return out


def adjacent_pairs(rows: Array, heads: int) -> Array:
    """Rows (i, i + d / 2) of every head become (2i, 2i + 1)."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _experts(case: Case, blk: str, part: State) -> State:
    out = {}
    both = part.get("mlp.experts.gate_up_proj")
    if both is not None and case.merged_experts:
        out[blk + "ffn_gate_up_exps.weight"] = both
    elif both is not None:
        half = both.shape[1] // 2
        out[blk + "ffn_gate_exps.weight"], out[blk + "ffn_up_exps.weight"] = both[:, :half], both[:, half:]
    if (gate := part.get("mlp.shared_expert_gate.weight")) is not None:
        out[blk + "ffn_gate_inp_shexp.weight"] = gate.reshape(-1)
    return out


def _ngram(blk: str, part: State) -> State:
    if "ple.conv1d.weight" not in part:
        return {}
    table = part["ple.ple_embedding.ngram_embedding.weight"]
    return {blk + "ple_conv1d.weight": part["ple.conv1d.weight"][:, 0], "per_layer_token_embd.weight": table}


def _delta(case: Case, blk: str, part: State) -> State:
    c = case.config
    key_heads, value_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    key_dim, value_dim = c["linear_key_head_dim"], c["linear_value_head_dim"]
    if "linear_attn.in_proj_qkvz.weight" in part:
        qkv, z = _split_qkvz(case, part["linear_attn.in_proj_qkvz.weight"])
    else:
        qkv, z = part["linear_attn.in_proj_qkv.weight"], part["linear_attn.in_proj_z.weight"]

    def heads(rows: Array, size: int = 1) -> Array:
        """Value heads in the file's order: tiled over key heads, of qwen3next grouped as they are."""
        if case.family == "qwen3next":
            return rows
        ratio = value_heads // key_heads
        slot = np.arange(value_heads)
        order = slot % key_heads * ratio + slot // key_heads
        return rows.reshape(value_heads, size, *rows.shape[1:])[order].reshape(rows.shape)

    def value_part(rows: Array) -> Array:
        keys = 2 * key_heads * key_dim
        return np.concatenate([rows[:keys], heads(rows[keys:], value_dim)])

    out = {
        "attn_qkv.weight": value_part(qkv),
        "attn_gate.weight": heads(z, value_dim),
        "ssm_conv1d.weight": value_part(part["linear_attn.conv1d.weight"][:, 0]),
        "ssm_dt.bias": heads(part["linear_attn.dt_bias"]),
        "ssm_a": heads(part["linear_attn.A_log"]),
        "ssm_out.weight": heads(part["linear_attn.out_proj.weight"].T, value_dim).T,
    }
    for short, new in (("a", "ssm_alpha"), ("b", "ssm_beta")):
        if (rows := part.get(f"linear_attn.in_proj_{short}.weight")) is not None:
            out[new + ".weight"] = heads(rows)
    return {blk + name: values for name, values in out.items()}


def _split_qkvz(case: Case, rows: Array) -> tuple[Array, Array]:
    """qwen3next packs, for each key head, its q, k, and the v and z of its value heads."""
    c, hidden = case.config, rows.shape[1]
    key_heads, key_dim = c["linear_num_key_heads"], c["linear_key_head_dim"]
    wide = c["linear_num_value_heads"] // key_heads * c["linear_value_head_dim"]
    cuts = np.cumsum([key_dim, key_dim, wide])
    q, k, v, z = np.split(rows.reshape(key_heads, -1, hidden), cuts, axis=1)
    return np.concatenate([x.reshape(-1, hidden) for x in (q, k, v)]), z.reshape(-1, hidden)
