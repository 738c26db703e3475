"""Full attention with an output gate, and the indexer that may choose its cells (Qwen3-Next, Qwen Sparse Attention)."""

from dataclasses import dataclass
from typing import Self

from strata.errors import ModelFileError
from strata.memory import IndexShape, StatePool
from strata.models.metadata import Metadata
from strata.models.weights import WeightReader
from strata.ops import (
    PAGE_CELLS,
    Buffer,
    Builder,
    IndexPool,
    Rotary,
    Weight,
    attention,
    head_norm_rope,
    index_keys,
    kv_store,
    linear,
    select_blocks,
    sigmoid_gate,
    sparse_attention,
)


@dataclass(frozen=True)
class Indexer:
    """Ranks blocks of `ratio` cells by small keys; a row attends to the best `budget` and to the incomplete one."""

    q_proj: Weight
    k_proj: Weight
    q_norm: Weight
    k_norm: Weight
    ratio: int
    budget: int
    place: int  # among the layers with an indexer

    @classmethod
    def load(cls, w: WeightReader, m: Metadata, prefix: str, hidden: int, ratio: int, place: int) -> Self:
        """The tensors `indexer.*` of a block; the ratio must divide a page."""
        if ratio < 1 or PAGE_CELLS % ratio:
            raise ModelFileError(
                f"{m.file.path}: {prefix}attn compresses {ratio} cells; a ratio must divide {PAGE_CELLS}"
            )
        dim, heads = m.positive("attention.indexer.key_length"), m.positive("attention.indexer.head_count")
        top_k = m.positive("attention.indexer.top_k")
        if top_k % ratio:
            raise ModelFileError(f"{m.file.path}: an indexer top_k of {top_k} is not whole blocks of {ratio}")
        return cls(
            q_proj=w.get(prefix + "indexer.q_proj.weight", heads * dim, hidden),
            k_proj=w.get(prefix + "indexer.k_proj.weight", dim, hidden),
            q_norm=w.vector(prefix + "indexer.q_norm.weight", dim),
            k_norm=w.vector(prefix + "indexer.k_norm.weight", dim),
            ratio=ratio,
            budget=top_k // ratio,
            place=place,
        )

    def shape(self, layers: int) -> IndexShape:
        """What it keeps of a sequence, for so many layers."""
        return IndexShape(layers, self.k_norm.shape[0], self.ratio)

    def forward(self, b: Builder, x: Buffer, pool: IndexPool, rotary: Rotary, eps: float) -> Buffer:
        """Stores the rows' index keys; the blocks each row attends to."""
        index_keys(b, linear(b, x, self.k_proj), self.k_norm, pool, rotary, eps)
        q = head_norm_rope(b, linear(b, x, self.q_proj), self.q_norm, rotary, eps)
        return select_blocks(b, q, pool, self.budget)


@dataclass(frozen=True)
class GatedAttention:
    """q_proj holds, head by head, the query and then a gate on that head's output."""

    q_proj: Weight
    k_proj: Weight
    v_proj: Weight
    o_proj: Weight
    q_norm: Weight
    k_norm: Weight
    indexer: Indexer | None
    eps: float
    place: int  # among the layers with keys and values

    @classmethod
    def load(
        cls, w: WeightReader, m: Metadata, prefix: str, hidden: int, place: int, indexer: Indexer | None
    ) -> Self:
        """The tensors `attn_*` of a block."""
        heads, kv_heads = m.positive("attention.head_count"), m.positive("attention.head_count_kv")
        if heads % kv_heads:
            raise ModelFileError(
                f"{m.file.path}: {heads} query heads over {kv_heads} key heads is not a whole ratio"
            )
        dim = m.positive("attention.key_length", hidden // heads)
        return cls(
            q_proj=w.get(prefix + "attn_q.weight", heads * 2 * dim, hidden),
            k_proj=w.get(prefix + "attn_k.weight", kv_heads * dim, hidden),
            v_proj=w.get(prefix + "attn_v.weight", kv_heads * dim, hidden),
            o_proj=w.get(prefix + "attn_output.weight", hidden, heads * dim),
            q_norm=w.vector(prefix + "attn_q_norm.weight", dim),
            k_norm=w.vector(prefix + "attn_k_norm.weight", dim),
            indexer=indexer,
            eps=m.real("attention.layer_norm_rms_epsilon"),
            place=place,
        )

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        return self.q_norm.shape[0]

    def store(self, b: Builder, x: Buffer, state: StatePool, rotary: Rotary) -> None:
        """The rows' cells alone, for rows that come later."""
        k = head_norm_rope(b, linear(b, x, self.k_proj), self.k_norm, rotary, self.eps)
        kv_store(b, k, linear(b, x, self.v_proj), state.kv.layers[self.place])
        if self.indexer is not None:
            pool = state.index[self.indexer.place]
            index_keys(b, linear(b, x, self.indexer.k_proj), self.indexer.k_norm, pool, rotary, self.eps)

    def forward(self, b: Builder, x: Buffer, state: StatePool, rotary: Rotary, window: int = 0) -> Buffer:
        """The mixer's output [rows, hidden] from its normed input; `window`: cells that a row without an indexer
        attends to, 0: all."""
        kv, dim = state.kv.layers[self.place], self.head_dim
        q_and_gate = linear(b, x, self.q_proj)
        q = head_norm_rope(b, q_and_gate, self.q_norm, rotary, self.eps, stride=2 * dim)
        k = head_norm_rope(b, linear(b, x, self.k_proj), self.k_norm, rotary, self.eps)
        kv_store(b, k, linear(b, x, self.v_proj), kv)
        heads, scale = q.shape[-1] // dim, dim**-0.5
        if self.indexer is None:
            y = attention(b, q, kv, heads, scale, window)
        else:
            pool = state.index[self.indexer.place]
            blocks = self.indexer.forward(b, x, pool, rotary, self.eps)
            y = sparse_attention(b, q, blocks, kv, heads, self.indexer.ratio, scale)
        return linear(b, sigmoid_gate(b, y, q_and_gate, dim, 2 * dim, dim), self.o_proj)
