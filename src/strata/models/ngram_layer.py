"""Hashed n-gram embeddings added to the streams (GGUF `ple_*`): gated by them, then a dilated convolution."""

from dataclasses import dataclass
from typing import Self

from strata.errors import ModelFileError
from strata.memory import RingShape
from strata.models.metadata import Metadata
from strata.models.weights import WeightReader
from strata.ops import (
    Buffer,
    Builder,
    NgramHash,
    Weight,
    add,
    causal_conv,
    grouped_norm,
    linear,
    ngram_gate,
    ngram_rows,
    table_rows,
)


@dataclass(frozen=True)
class NgramLayer:
    """Weights and hash constants."""

    table: Weight  # [rows, width]
    hashed: NgramHash
    key_proj: Weight
    value_proj: Weight
    norm_key: Weight
    norm_query: Weight
    norm_conv: Weight
    conv: Weight
    streams: int
    dilation: int  # the n-gram size; files do not say it apart
    eps: float

    @classmethod
    def load(cls, w: WeightReader, m: Metadata, prefix: str, hidden: int) -> Self:
        """The tensors `ple_*` of a block and the table; ModelFileError where the hash can leave the table."""
        streams, wide = m.positive("hyper_connection.count"), m.positive("hyper_connection.count") * hidden
        table = w.get("per_layer_token_embd.weight", -1, m.positive("embedding_length_per_layer_input"))
        hashed, heads = _hash(m, table.shape[0]), len(m.numbers("ple.head_vocab_sizes"))
        joined = heads * table.shape[1]
        conv = w.floats(prefix + "ple_conv1d.weight", wide, m.positive("ple.conv_kernel"))
        return cls(
            table=table,
            hashed=hashed,
            key_proj=w.get(prefix + "ple_key.weight", wide, joined),
            value_proj=w.get(prefix + "ple_value.weight", hidden, joined),
            norm_key=w.vector(prefix + "ple_norm_key.weight", wide),
            norm_query=w.vector(prefix + "ple_norm_query.weight", wide),
            norm_conv=w.vector(prefix + "ple_norm_conv.weight", wide),
            conv=conv or w.get(prefix + "ple_conv1d.weight", wide, m.positive("ple.conv_kernel")),
            streams=streams,
            dilation=m.positive("ple.ngram_size"),
            eps=m.real("attention.layer_norm_rms_epsilon"),
        )

    @property
    def ring(self) -> RingShape:
        """Columns that the convolution reads again."""
        return RingShape(self.conv.shape[0], (self.conv.shape[1] - 1) * self.dilation)

    @property
    def history(self) -> int:
        """Earlier tokens that a row's n-grams hold."""
        return self.hashed.multipliers.shape[0] - 1

    def look_up(self, b: Builder, history: Buffer) -> Buffer:
        """Rows of the table that the step's tokens take, i32 [rows, heads]; emitted before the first layer, so that
        they may be read meanwhile."""
        return ngram_rows(b, self.hashed, history)

    def forward(self, b: Builder, residual: Buffer, index: Buffer, ring: Buffer) -> Buffer:
        """The streams with the layer's part added."""

        def normed(x: Buffer, weight: Weight) -> Buffer:
            return grouped_norm(b, x, weight, self.streams, self.eps)

        rows = table_rows(b, index, self.table)
        key = normed(linear(b, rows, self.key_proj), self.norm_key)
        gated = ngram_gate(b, key, normed(residual, self.norm_query), linear(b, rows, self.value_proj))
        mixed = causal_conv(b, normed(gated, self.norm_conv), self.conv, ring, self.dilation)
        return add(b, residual, add(b, gated, mixed))


def _hash(m: Metadata, rows: int) -> NgramHash:
    multipliers, size = m.numbers("ple.layer_multipliers"), m.positive("ple.ngram_size")
    sizes, offsets = m.numbers("ple.head_vocab_sizes"), m.numbers("ple.head_offsets")
    if len(multipliers) != size:
        raise ModelFileError(f"{m.file.path}: {len(multipliers)} multipliers for n-grams of {size} tokens")
    hashed = NgramHash.create(multipliers, sizes, offsets, m.whole("ple.eos_token_id"))
    end = max(size + offset for size, offset in zip(sizes, offsets, strict=True))
    if end > rows:
        raise ModelFileError(
            f"{m.file.path}: n-gram heads reach row {end}; per_layer_token_embd.weight has {rows} rows"
        )
    return hashed
