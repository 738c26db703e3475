"""Checkpoint names to GGUF names, one function for each kind of block (MODEL_SPEC 2.12 and 3.2)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from strata.convert.checkpoint import Checkpoint, Floats, Index
from strata.convert.config import Config
from strata.convert.rows import Plane, Planned, Rows, beside, joined, part_of, rows_of, stacked
from strata.errors import UnsupportedError

Tensors = Iterator[Planned]


@dataclass(frozen=True)
class Family:
    """How an architecture's files differ. `zero_centred`: the checkpoint's norms are offsets from 1."""

    arch: str
    zero_centred: bool = True
    hybrid: bool = True  # gated delta rule layers between gated attention layers
    experts: bool = True
    shared_expert: bool = True
    tiled: bool = True  # value heads go from grouped to tiled order
    streams: bool = False  # hyper-connections instead of norms; indexer; n-gram table
    adjacent_pairs: bool = False  # query and key rows permuted for rotary pairs side by side


@dataclass(frozen=True)
class Source:
    """A checkpoint as its family reads it."""

    checkpoint: Checkpoint
    config: Config
    family: Family

    def rows(self, name: str, order: Index | None = None) -> Rows:
        return rows_of(self.checkpoint, name, order)

    def norm(self, name: str) -> Rows:
        """A norm's weight, 1 added where the checkpoint leaves it out."""
        rows = self.rows(name)
        return rows.map(_plus_one) if self.family.zero_centred else rows


def _plus_one(x: Floats) -> Floats:
    return x + np.float32(1)


def attention(s: Source, src: str, dst: str) -> Tensors:
    """Query (with its gate, per head), key, value, output, norms per head, indexer."""
    heads, kv_heads = s.config.whole("num_attention_heads"), s.config.whole("num_key_value_heads")
    for short, count in (("q", heads), ("k", kv_heads), ("v", 0), ("o", 0)):
        name = "attn_output" if short == "o" else f"attn_{short}"
        for suffix, plane in (("weight", Plane.DENSE), ("bias", Plane.FLOAT)):
            stored = f"{src}self_attn.{short}_proj.{suffix}"
            if suffix == "bias" and stored not in s.checkpoint:
                continue
            order = adjacent_pairs(count, s.config.head_dim) if s.family.adjacent_pairs and count else None
            yield Planned(f"{dst}{name}.{suffix}", plane, s.rows(stored, order))
    for short in "qk":
        if (stored := f"{src}self_attn.{short}_norm.weight") in s.checkpoint:
            yield Planned(f"{dst}attn_{short}_norm.weight", Plane.FLOAT, s.norm(stored))
    if s.family.streams:
        yield from _indexer(s, src + "self_attn.indexer.", dst + "indexer.")


def _indexer(s: Source, src: str, dst: str) -> Tensors:
    rows = s.config.whole("indexer_n_heads") * s.config.whole("indexer_head_dim")
    both = src + "index_qk_proj.weight"
    order = np.arange(s.checkpoint.info(both).shape[0])
    yield Planned(dst + "q_proj.weight", Plane.INDEXER, s.rows(both, order[:rows]))
    yield Planned(dst + "k_proj.weight", Plane.INDEXER, s.rows(both, order[rows:]))
    for short in "qk":
        yield Planned(f"{dst}{short}_norm.weight", Plane.FLOAT, s.norm(f"{src}{short}_layernorm.weight"))


def adjacent_pairs(heads: int, head_dim: int) -> Index:
    """Row order that puts the two of a rotary pair (i, i + head_dim / 2) side by side in each head."""
    return np.arange(heads * head_dim).reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)


def tiled_heads(key_heads: int, value_heads: int) -> Index:
    """Which value head (grouped order) goes to each slot, so that slot mod key_heads is its key head."""
    return np.arange(value_heads).reshape(key_heads, -1).T.reshape(-1)


def delta_rule(s: Source, src: str, dst: str) -> Tensors:
    """Gated delta rule: value heads tiled, or for qwen3next only the packed projection taken apart."""
    src += "linear_attn."
    c = s.config
    key_heads, value_heads = c.whole("linear_num_key_heads"), c.whole("linear_num_value_heads")
    key_dim, value_dim = c.whole("linear_key_head_dim"), c.whole("linear_value_head_dim")
    heads = tiled_heads(key_heads, value_heads) if s.family.tiled else np.arange(value_heads)
    values = (heads[:, None] * value_dim + np.arange(value_dim)).reshape(-1)
    channels = np.concatenate([np.arange(2 * key_heads * key_dim), 2 * key_heads * key_dim + values])
    if s.family.tiled:
        yield Planned(dst + "attn_qkv.weight", Plane.DENSE, s.rows(src + "in_proj_qkv.weight", channels))
        yield Planned(dst + "attn_gate.weight", Plane.DENSE, s.rows(src + "in_proj_z.weight", values))
        yield Planned(dst + "ssm_alpha.weight", Plane.FLOAT, s.rows(src + "in_proj_a.weight", heads))
        yield Planned(dst + "ssm_beta.weight", Plane.FLOAT, s.rows(src + "in_proj_b.weight", heads))
    else:
        qkv, gate = unpacked_rows(key_heads, key_dim, value_heads // key_heads * value_dim)
        packed = src + "in_proj_qkvz.weight"
        yield Planned(dst + "attn_qkv.weight", Plane.DENSE, s.rows(packed, qkv))
        yield Planned(dst + "attn_gate.weight", Plane.DENSE, s.rows(packed, gate))
        yield Planned(dst + "ssm_ba.weight", Plane.FLOAT, s.rows(src + "in_proj_ba.weight"))
    conv = s.rows(src + "conv1d.weight", channels)
    yield Planned(dst + "ssm_conv1d.weight", Plane.FLOAT, conv.reshape(len(channels), conv.shape[-1]))
    yield Planned(dst + "ssm_dt.bias", Plane.FLOAT, s.rows(src + "dt_bias", heads))
    yield Planned(dst + "ssm_a", Plane.FLOAT, s.rows(src + "A_log", heads).map(lambda a: -np.exp(a)))
    yield Planned(dst + "ssm_norm.weight", Plane.FLOAT, s.rows(src + "norm.weight"))
    out = s.rows(src + "out_proj.weight").map(lambda piece: np.ascontiguousarray(piece[:, values]))
    yield Planned(dst + "ssm_out.weight", Plane.DENSE, out)


def unpacked_rows(key_heads: int, key_dim: int, group_values: int) -> tuple[Index, Index]:
    """Rows of q|k|v and of the gate in a projection packed per key head as [q, k, values, gate]."""
    group = 2 * key_dim + 2 * group_values
    starts = np.cumsum([0, key_dim, key_dim, group_values, group_values])
    base = np.arange(key_heads)[:, None] * group
    q, k, v, z = ((base + np.arange(a, b)).reshape(-1) for a, b in pairwise(starts))
    return np.concatenate([q, k, v]), z


def feed_forward(s: Source, src: str, dst: str) -> Tensors:
    """A dense SwiGLU, or a router with its experts and the shared one."""
    if not s.family.experts:
        for short in ("gate", "up", "down"):
            rows = s.rows(f"{src}mlp.{short}_proj.weight")
            yield Planned(f"{dst}ffn_{short}.weight", Plane.DENSE, rows)
        return
    router = s.rows(src + "mlp.gate.weight")
    yield Planned(dst + "ffn_gate_inp.weight", Plane.FLOAT, router)
    for short, rows in _experts(s, src + "mlp.experts.", router.shape[0]):
        yield Planned(f"{dst}ffn_{short}_exps.weight", Plane.EXPERT, rows)
    if s.family.shared_expert:
        gate = s.rows(src + "mlp.shared_expert_gate.weight")
        yield Planned(dst + "ffn_gate_inp_shexp.weight", Plane.FLOAT, gate.reshape(gate.shape[-1]))
        for short in ("gate", "up", "down"):
            rows = s.rows(f"{src}mlp.shared_expert.{short}_proj.weight")
            yield Planned(f"{dst}ffn_{short}_shexp.weight", Plane.DENSE, rows)


def _experts(s: Source, src: str, count: int) -> Iterator[tuple[str, Rows]]:
    """Experts stored one by one, or as [experts, 2 F, H] (gate rows first) and [experts, H, F]."""
    both = src + "gate_up_proj"
    if both in s.checkpoint:
        half = s.checkpoint.info(both).shape[1] // 2
        yield "gate", part_of(s.checkpoint, both, slice(0, half))
        yield "up", part_of(s.checkpoint, both, slice(half, 2 * half))
        yield "down", part_of(s.checkpoint, src + "down_proj", slice(None))
        return
    for short in ("gate", "up", "down"):
        yield short, stacked([s.rows(f"{src}{i}.{short}_proj.weight") for i in range(count)])


def hyper_connection(s: Source, src: str, dst: str) -> Tensors:
    """Norm, low-rank mixer and, where there is one, the weights that write back to the streams."""
    yield Planned(dst + "norm.weight", Plane.FLOAT, s.norm(src + "hc_norm.weight"))
    for short in ("down", "up"):
        rows = s.rows(f"{src}input_mix_weight_{short}.weight")
        yield Planned(f"{dst}{short}.weight", Plane.MIXER, rows)
    if (stored := src + "block_inject_weight.weight") in s.checkpoint:
        yield Planned(dst + "inject.weight", Plane.FLOAT, s.rows(stored))


def ngram_layer(s: Source, src: str, dst: str) -> Tensors:
    """Projections, norms and the dilated convolution of a layer with n-gram embeddings."""
    for short in ("key", "value"):
        yield Planned(f"{dst}ple_{short}.weight", Plane.MIXER, s.rows(f"{src}ple.{short}_proj.weight"))
    for short in ("key", "query", "conv"):
        yield Planned(f"{dst}ple_norm_{short}.weight", Plane.FLOAT, s.norm(f"{src}ple.norm_{short}.weight"))
    conv = s.rows(src + "ple.conv1d.weight")
    yield Planned(dst + "ple_conv1d.weight", Plane.FLOAT, conv.reshape(conv.shape[0], conv.shape[-1]))


def ngram_table(s: Source, src: str) -> Tensors:
    """The table, whole or in numbered shards."""
    src += "ple.ple_embedding.ngram_embedding."
    if src + "weight" in s.checkpoint:
        rows = s.rows(src + "weight")
    else:
        count = sum(name.startswith(src + "shard_") for name in s.checkpoint.names)
        rows = joined([s.rows(f"{src}shard_{i}.weight") for i in range(max(1, count))])
    yield Planned("per_layer_token_embd.weight", Plane.TABLE, rows)


def block(s: Source, src: str, dst: str, kind: str) -> Tensors:
    """One layer: mixer and feed-forward with what stands before and after them."""
    if s.family.streams:
        yield from hyper_connection(s, src + "attn_hyper_connection.", dst + "hc_attn_")
        yield from hyper_connection(s, src + "mlp_hyper_connection.", dst + "hc_ffn_")
    else:
        after = "post_attention_norm" if s.family.hybrid else "ffn_norm"
        yield Planned(dst + "attn_norm.weight", Plane.FLOAT, s.norm(src + "input_layernorm.weight"))
        yield Planned(f"{dst}{after}.weight", Plane.FLOAT, s.norm(src + "post_attention_layernorm.weight"))
    yield from (delta_rule if kind == "linear_attention" else attention)(s, src, dst)
    yield from feed_forward(s, src, dst)


def draft(s: Source, dst: str) -> Tensors:
    """The draft layer: the pair of projections as one, embedding columns first, then one attention block."""
    if (
        "mtp.layers.1.input_layernorm.weight" in s.checkpoint
        or "mtp.layers.1.mlp.gate.weight" in s.checkpoint
    ):
        raise UnsupportedError(f"{s.checkpoint.directory}: has several draft layers; one is supported")
    if s.family.streams:
        pair = beside(s.rows("mtp.fc_embedding.weight"), s.rows("mtp.fc_hidden.weight"))
    else:
        pair = s.rows("mtp.fc.weight")
    yield Planned(dst + "nextn.eh_proj.weight", Plane.DENSE, pair)
    for name, stored in (("enorm", "embedding"), ("hnorm", "hidden")):
        yield Planned(f"{dst}nextn.{name}.weight", Plane.FLOAT, s.norm(f"mtp.pre_fc_norm_{stored}.weight"))
    if s.family.streams:
        yield from hyper_connection(s, "mtp.hyper_connection_mixer.", dst + "nextn.hc_head_")
    else:
        yield Planned(dst + "nextn.shared_head_norm.weight", Plane.FLOAT, s.norm("mtp.norm.weight"))
    yield from block(s, "mtp.layers.0.", dst, "full_attention")
