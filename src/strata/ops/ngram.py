"""Hashed n-grams: rows of a table picked by a row's last tokens, and their gate by the residual."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from strata.ops.arithmetic import lane_dot, sigmoid32
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.groups import groups, keep, taps, window
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_width, same_shape
from strata.ops.step import RING_ROWS


@dataclass(frozen=True, eq=False)
class NgramHash:
    """Constants of the hash, as the file states them; whole numbers of 64 bits."""

    multipliers: Buffer  # u64 [size]: of the token, of the one before it, and so on
    sizes: Buffer  # u64 [heads]: rows of a head's part of the table
    offsets: Buffer  # u64 [heads]: where it begins
    eos: int

    @classmethod
    def create(
        cls, multipliers: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], eos: int
    ) -> "NgramHash":
        """Heads are divided evenly over the orders 2 to len(multipliers)."""
        orders = len(multipliers) - 1
        expect(
            orders > 0 and len(sizes) == len(offsets) and len(sizes) % orders == 0,
            f"n-gram tables of {len(sizes)} sizes and {len(offsets)} offsets for orders up to {orders + 1}",
        )
        expect(min(sizes) > 0, "an n-gram table part without rows")

        def constant(name: str, values: Sequence[int]) -> Buffer:
            return Buffer(name, (len(values),), "u64", "constant", data=np.asarray(values, np.uint64))

        return cls(
            constant("multipliers", multipliers), constant("sizes", sizes), constant("offsets", offsets), eos
        )


@dataclass(frozen=True, eq=False)
class NgramRows(Op):
    """Head i of order n takes row m mod size_i + offset_i, m = t0 M0 xor .. xor t(n-1) M(n-1) in 64 bits.

    Going back from the row's token, a missing token or `eos` makes itself and everything older `eos`. `history`
    i32 [slots, RING_ROWS] holds the sequences' tokens by position.
    """

    kind: ClassVar[str] = "ngram_rows"
    writes: ClassVar[tuple[str, ...]] = ("history", "out")
    positions: Buffer
    sequences: Buffer
    tap_positions: Buffer
    tap_slots: Buffer
    tokens: Buffer
    multipliers: Buffer
    sizes: Buffer
    offsets: Buffer
    history: Buffer
    out: Buffer  # i32 [rows, heads]
    eos: int
    tapped: bool

    def run_float(self, at: Arrays) -> None:
        history, tokens, size = at[self.history], at.live(self.tokens), self.multipliers.shape[0]
        for group in groups(at, self.positions, self.sequences):
            rows = tokens[group.rows]
            span = window(history[group.sequence], group, rows, size - 1)
            span[: max(size - 1 - group.position, 0)] = self.eos
            at.live(self.out)[group.rows] = self._hash(at, span, group.count)
            keep(history[group.sequence], group, rows)
            for position, slot in taps(at, self.tap_positions, self.tap_slots, group) if self.tapped else ():
                last = np.arange(position - size + 1, position)
                history[slot][last % RING_ROWS] = span[last - group.position + size - 1]

    def _hash(self, at: Arrays, span: NDArray[np.int32], count: int) -> Any:
        multipliers, sizes, offsets = (at[x] for x in (self.multipliers, self.sizes, self.offsets))
        orders = len(multipliers) - 1
        per_order = len(sizes) // orders
        cut = np.zeros(count, bool)
        mixed = span[orders:].astype(np.uint64) * multipliers[0]
        rows = []
        for back in range(1, orders + 1):
            token = span[orders - back : orders - back + count]
            cut = cut | (token == self.eos)
            mixed = mixed ^ (np.where(cut, self.eos, token).astype(np.uint64) * multipliers[back])
            heads = slice((back - 1) * per_order, back * per_order)
            rows.append(mixed[:, None] % sizes[heads] + offsets[heads])
        return np.concatenate(rows, axis=1).astype(np.int32)


@dataclass(frozen=True, eq=False)
class TableRows(Op):
    """Several rows of a table side by side, decoded exactly."""

    kind: ClassVar[str] = "table_rows"
    index: Buffer  # i32 [rows, n]
    weight: Weight  # [table rows, width]
    out: Buffer  # [rows, n * width]

    def row_weight_bytes(self) -> int:
        """The table's rows that one row picks."""
        return self.weight.nbytes // self.weight.shape[0] * self.index.shape[-1]

    def run_float(self, at: Arrays) -> None:
        table, index = self.weight.data.reshape(self.weight.shape[0], -1), at.live(self.index)
        rows = self.weight.format.decode(np.ascontiguousarray(table[index.reshape(-1)]))
        at.live(self.out)[:] = rows.reshape(len(index), -1)


@dataclass(frozen=True, eq=False)
class NgramGate(Op):
    """Per stream: s = key . query / sqrt(width); out = sigmoid(sign(s) sqrt(max(|s|, 1e-6))) * value."""

    kind: ClassVar[str] = "ngram_gate"
    key: Buffer  # [rows, streams * width]
    query: Buffer  # [rows, streams * width]
    value: Buffer  # [rows, width]
    out: Buffer  # [rows, streams * width]

    def _parts(self, at: Arrays) -> tuple[Any, Any, Any, np.float32]:
        width, n = self.value.shape[-1], at.count(self.out)
        key, query = (at.live(x).reshape(n, -1, width) for x in (self.key, self.query))
        return key, query, at.live(self.value)[:, None], np.float32(width**-0.5)

    def run_float(self, at: Arrays) -> None:
        key, query, value, scale = self._parts(at)
        s = (key * query).sum(axis=-1, keepdims=True) * scale
        gate = 1 / (1 + np.exp(-np.sign(s) * np.sqrt(np.maximum(np.abs(s), np.float32(1e-6)))))
        at.live(self.out)[:] = (gate * value).reshape(len(key), -1)

    def run_contract(self, at: Arrays) -> None:
        key, query, value, scale = self._parts(at)
        s = lane_dot(key, query)[..., None] * scale
        root = np.sqrt(np.maximum(np.abs(s), np.float32(1e-6)))
        at.live(self.out)[:] = (sigmoid32(np.sign(s) * root) * value).reshape(len(key), -1)


def ngram_rows(b: Builder, hashed: NgramHash, history: Buffer) -> Buffer:
    """Table rows i32 [rows, heads] of the step's tokens."""
    expect(hashed.multipliers.shape[0] <= 8, f"n-grams of {hashed.multipliers.shape[0]} tokens; at most 8")
    s, out = b.steps, b.rows(hashed.sizes.shape[0], "ngrams", dtype="i32")
    b.emit(
        NgramRows(
            s.positions, s.sequences, s.tap_positions, s.tap_slots, s.tokens, hashed.multipliers, hashed.sizes,
            hashed.offsets, history, out, hashed.eos, tapped=b.form == "chunk",
        )
    )  # fmt: skip
    return out


def table_rows(b: Builder, index: Buffer, weight: Weight) -> Buffer:
    """[rows, n * width] of the table rows index [rows, n]."""
    out = b.rows(index.shape[-1] * weight.shape[-1], "table_rows", like=index)
    b.emit(TableRows(index, weight, out))
    return out


def ngram_gate(b: Builder, key: Buffer, query: Buffer, value: Buffer) -> Buffer:
    """[rows, streams * width]: value [rows, width] gated for every stream by normed keys and queries."""
    same_shape(key, query)
    expect(key.shape[-1] % value.shape[-1] == 0, f"{key} is not whole streams of {value.shape[-1]}")
    expect_width(value, value.shape[-1])
    out = b.rows(key.shape[-1], "gated", like=key)
    b.emit(NgramGate(key, query, value, out))
    return out
