"""Checkpoints for tests: a safetensors writer, and a golden GGUF file taken back to the names it came from.

The way back is written from the formats' descriptions alone, so that converting again proves both.
"""

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from strata.gguf import open_model
from strata.quants import FORMATS

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
MODEL_TYPES = {
    "llama": "llama",
    "qwen3moe": "qwen3_moe",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "qwen3next": "qwen3_next",
    "qwen4exp": "qwen4_exp_text",
}
Tensors = dict[str, np.ndarray]

PLAIN = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    **{f"attn_{x}.{kind}": f"self_attn.{x}_proj.{kind}" for x in "qkv" for kind in ("weight", "bias")},
    **{f"attn_output.{kind}": f"self_attn.o_proj.{kind}" for kind in ("weight", "bias")},
    **{f"attn_{x}_norm.weight": f"self_attn.{x}_norm.weight" for x in "qk"},
    **{f"indexer.{x}_norm.weight": f"self_attn.indexer.{x}_layernorm.weight" for x in "qk"},
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_ba.weight": "linear_attn.in_proj_ba.weight",
    **{f"ffn_{x}.weight": f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")},
    **{f"ffn_{x}_shexp.weight": f"mlp.shared_expert.{x}_proj.weight" for x in ("gate", "up", "down")},
    "ffn_gate_inp.weight": "mlp.gate.weight",
    **{f"ple_{x}.weight": f"ple.{x}_proj.weight" for x in ("key", "value")},
    **{f"ple_norm_{x}.weight": f"ple.norm_{x}.weight" for x in ("key", "query", "conv")},
    "nextn.eh_proj.weight": "mtp.fc.weight",
    "nextn.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "nextn.shared_head_norm.weight": "mtp.norm.weight",
}
MIXER = {
    "norm": "hc_norm",
    "down": "input_mix_weight_down",
    "up": "input_mix_weight_up",
    "inject": "block_inject_weight",
}
for _old, _new in MIXER.items():
    PLAIN[f"hc_attn_{_old}.weight"] = f"attn_hyper_connection.{_new}.weight"
    PLAIN[f"hc_ffn_{_old}.weight"] = f"mlp_hyper_connection.{_new}.weight"
    PLAIN[f"nextn.hc_head_{_old}.weight"] = f"mtp.hyper_connection_mixer.{_new}.weight"


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """float32, float16, int64, or uint16 arrays, which are written as BF16."""
    names = {"<f4": "F32", "<f2": "F16", "<i8": "I64", "<u2": "BF16"}
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {
            "dtype": names[x.dtype.str],
            "shape": list(x.shape),
            "data_offsets": [at, at + x.nbytes],
        }
        at += x.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            file.write(np.ascontiguousarray(x).tobytes())


def write_checkpoint(directory: Path, config: dict[str, Any], tensors: Tensors, shards: int = 1) -> Path:
    """A directory with config.json and one file, or an index and several shards: the draft layer in the last."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors)
        return directory
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    where = {}
    for i, name in enumerate(tensors):
        where[name] = files[-1] if name.startswith("mtp.") else files[i % (shards - 1)]
    for file in files:
        write_safetensors(directory / file, {n: tensors[n] for n, f in where.items() if f == file})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return directory


def golden_case(name: str) -> dict[str, Any]:
    """case.json of a golden file."""
    return json.loads((GOLDENS / name / "case.json").read_text())


def read_tensors(path: Path) -> Tensors:
    """All tensors of a GGUF file, decoded, rows first."""
    with open_model(path) as file:
        return {
            name: FORMATS[info.type.name].decode(np.array(file.data(name))).reshape(info.ne[::-1])
            for name, info in file.tensors.items()
        }


def taken_back(name: str) -> tuple[dict[str, Any], Tensors]:
    """config.json and tensors of the checkpoint that a golden file comes from."""
    case = golden_case(name)
    config = dict(case["config"], model_type=MODEL_TYPES[case["family"]])
    found: Tensors = {}
    for gguf_name, x in read_tensors(GOLDENS / name / "model.gguf").items():
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", gguf_name)
        if gguf_name == "rope_freqs.weight":
            continue
        if not match:
            found |= _top(gguf_name, x, config)
            continue
        layer, short = int(match[1]), match[2]
        draft = layer >= config["num_hidden_layers"]
        prefix = "mtp.layers.0." if draft else f"model.layers.{layer}."
        for stored, value in _block(case["family"], config, short, x).items():
            full = stored if stored.startswith("mtp.") else prefix + stored
            found[full] = np.concatenate([found[full], value]) if full in found else value
    _pack(case["family"], config, found)
    offsets = case["family"] not in ("llama", "qwen3moe")
    for stored, x in found.items():
        if offsets and "norm" in stored and not stored.endswith("linear_attn.norm.weight"):
            found[stored] = x - np.float32(1)
    return config, found


def _top(name: str, x: np.ndarray, config: dict[str, Any]) -> Tensors:
    if name == "per_layer_token_embd.weight":
        layer, parts = config["ple_layer_ids"][0] - 1, config["split_ngram_parts"]
        prefix = f"model.layers.{layer}.ple.ple_embedding.ngram_embedding."
        return {f"{prefix}shard_{i}.weight": part for i, part in enumerate(np.array_split(x, parts))}
    stored = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output.weight": "lm_head.weight",
        "output_norm.weight": "model.norm.weight",
        **{f"output_hc_{a}.weight": f"model.hyper_connection_mixer.{b}.weight" for a, b in MIXER.items()},
    }[name]
    return {stored: x}


def _block(family: str, c: dict[str, Any], name: str, x: np.ndarray) -> Tensors:
    if name == "nextn.eh_proj.weight" and family == "qwen4exp":
        half = x.shape[1] // 2
        return {"mtp.fc_embedding.weight": x[:, :half], "mtp.fc_hidden.weight": x[:, half:]}
    if family == "llama" and re.fullmatch(r"attn_[qk]\.(weight|bias)", name):
        heads = c["num_attention_heads" if name[5] == "q" else "num_key_value_heads"]
        per_head = x.reshape(heads, -1, 2, *x.shape[1:])
        return {PLAIN[name]: np.concatenate([per_head[:, :, 0], per_head[:, :, 1]], axis=1).reshape(x.shape)}
    if name in PLAIN:
        return {PLAIN[name]: x}
    return _reshaped(name, x) or _delta(family, c, name, x)


def _reshaped(name: str, x: np.ndarray) -> Tensors:
    if match := re.fullmatch(r"ffn_(gate|up|down)_exps\.weight", name):
        return {f"mlp.experts.{i}.{match[1]}_proj.weight": expert for i, expert in enumerate(x)}
    if name == "ffn_gate_inp_shexp.weight":
        return {"mlp.shared_expert_gate.weight": x[None]}
    if name == "ple_conv1d.weight":
        return {"ple.conv1d.weight": x[:, None]}
    if name.startswith("indexer."):  # q comes before k in the file
        return {"self_attn.indexer.index_qk_proj.weight": x}
    return {}


def _delta(family: str, c: dict[str, Any], name: str, x: np.ndarray) -> Tensors:
    """Value head h of the checkpoint is at slot (h mod r) n + h div r of the file (n key heads, r = values / keys)."""
    n, heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    ratio, keys = heads // n, 2 * n * c["linear_key_head_dim"]
    h = np.arange(heads)
    slots = h if family == "qwen3next" else h % ratio * n + h // ratio

    def grouped(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(heads, -1, *rows.shape[1:])[slots].reshape(rows.shape)

    def behind_keys(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([rows[:keys], grouped(rows[keys:])])

    stored, value = {
        "attn_qkv.weight": ("in_proj_qkv.weight", behind_keys),
        "attn_gate.weight": ("in_proj_z.weight", grouped),
        "ssm_alpha.weight": ("in_proj_a.weight", grouped),
        "ssm_beta.weight": ("in_proj_b.weight", grouped),
        "ssm_conv1d.weight": ("conv1d.weight", lambda rows: behind_keys(rows)[:, None]),
        "ssm_dt.bias": ("dt_bias", grouped),
        "ssm_a": ("A_log", lambda rows: np.log(-grouped(rows))),
        "ssm_out.weight": ("out_proj.weight", lambda rows: grouped(rows.T).T),
    }[name]
    return {f"linear_attn.{stored}": value(x)}


def _pack(family: str, c: dict[str, Any], found: Tensors) -> None:
    """qwen3next keeps, for each key head, its q, k, values and gates together."""
    if family != "qwen3next":
        return
    n, width = c["linear_num_key_heads"], c["linear_key_head_dim"]
    for name in [name for name in found if name.endswith("in_proj_qkv.weight")]:
        qkv, z = found.pop(name), found.pop(name.replace("qkv", "z"))
        q, k, v = np.split(qkv, [n * width, 2 * n * width])
        parts = [part.reshape(n, -1, qkv.shape[1]) for part in (q, k, v, z)]
        found[name.replace("qkv", "qkvz")] = np.concatenate(parts, axis=1).reshape(-1, qkv.shape[1])
