"""delta_rule: the gated delta rule (Yang et al. 2024), in a step form that stores nothing of unverified rows, and in a
chunk form for prompts (docs/contract.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.delta_math import DeltaRows, advance_contract, advance_float, block_contract
from strata.ops.groups import Group, groups, taps
from strata.ops.op import Arrays, Op
from strata.ops.shapes import expect, expect_width
from strata.ops.step import CHUNK_BLOCK, RING_ROWS

Advance = Callable[[Any, DeltaRows], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class DeltaState:
    """One layer's state: `state` f32 [slots, value_heads, value_dim, key_dim]; `pending` f32 [slots, RING_ROWS, width],
    by position, holds of each row its keys, values, beta and g."""

    state: Buffer
    pending: Buffer
    key_heads: int
    tiled: bool  # key head of value head h: h % key_heads, else h // (value_heads / key_heads)

    @property
    def value_heads(self) -> int:
        """Heads with a state."""
        return self.state.shape[1]

    @property
    def value_dim(self) -> int:
        """Values of a head."""
        return self.state.shape[2]

    @property
    def key_dim(self) -> int:
        """Values of a key."""
        return self.state.shape[3]

    @property
    def key_width(self) -> int:
        """Values of a row's keys."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Values of a row's values."""
        return self.value_heads * self.value_dim

    @staticmethod
    def pending_width(key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> int:
        """Values that a pending row keeps."""
        return key_heads * key_dim + value_heads * value_dim + 2 * value_heads

    def rows(self, kept: Any, q: Any = None) -> DeltaRows:
        """Rows by value head from rows [n, pending width] and, where outputs are wanted, queries [n, key width]."""
        n, heads, h = len(kept), self.value_heads, np.arange(self.value_heads)
        source = h % self.key_heads if self.tiled else h // (heads // self.key_heads)
        k, v, beta, g = np.split(kept, np.cumsum([self.key_width, self.value_width, heads]), axis=-1)
        return DeltaRows(
            k=k.reshape(n, self.key_heads, self.key_dim)[:, source],
            v=v.reshape(n, heads, self.value_dim),
            beta=beta,
            g=g,
            q=None if q is None else q.reshape(n, self.key_heads, self.key_dim)[:, source],
        )


@dataclass(frozen=True, eq=False)
class _Delta(Op):
    """What all three ops share: the state after the rows that were committed."""

    positions: Buffer
    sequences: Buffer
    commits: Buffer
    state: Buffer
    pending: Buffer
    key_heads: int
    tiled: bool

    @property
    def of(self) -> DeltaState:
        """The layer's state."""
        return DeltaState(self.state, self.pending, self.key_heads, self.tiled)

    def _settled(self, at: Arrays, group: Group, advance: Advance) -> Any:
        """Zero at position 0, else the stored state after the committed rows before the group."""
        if group.position == 0:
            return np.zeros(self.state.shape[1:], np.float32)
        count = int(at[self.commits][group.sequence])
        committed = np.arange(group.position - count, group.position) % RING_ROWS
        state, _ = advance(
            at[self.state][group.sequence], self.of.rows(at[self.pending][group.sequence][committed])
        )
        return state


@dataclass(frozen=True, eq=False)
class DeltaSettle(_Delta):
    """Applies the committed rows; each row of the step names a sequence and its next position."""

    kind: ClassVar[str] = "delta_settle"
    writes: ClassVar[tuple[str, ...]] = ("state",)

    def run_float(self, at: Arrays) -> None:
        self._run(at, advance_float)

    def run_contract(self, at: Arrays) -> None:
        self._run(at, advance_contract)

    def _run(self, at: Arrays, advance: Advance) -> None:
        for group in groups(at, self.positions, self.sequences):
            at[self.state][group.sequence] = self._settled(at, group, advance)


@dataclass(frozen=True, eq=False)
class DeltaRule(_Delta):
    """Step form: settles, stores the state, computes the rows from it, and keeps their inputs as pending."""

    kind: ClassVar[str] = "delta_rule"
    writes: ClassVar[tuple[str, ...]] = ("state", "pending", "out")
    qk: Buffer  # [rows, 2 * key_heads * key_dim]
    mixed: Buffer  # [rows, 2 * key_heads * key_dim + value_heads * value_dim]: values are its last part
    gates: Buffer  # [rows, 2 * value_heads]: beta, g
    out: Buffer  # [rows, value_heads * value_dim]

    def run_float(self, at: Arrays) -> None:
        self._run(at, advance_float)

    def run_contract(self, at: Arrays) -> None:
        self._run(at, advance_contract)

    def _run(self, at: Arrays, advance: Advance) -> None:
        for group in groups(at, self.positions, self.sequences):
            state = self._settled(at, group, advance)
            at[self.state][group.sequence] = state
            kept, q = self._inputs(at, group)
            _, out = advance(state, self.of.rows(kept, q))
            at.live(self.out)[group.rows] = out.reshape(group.count, -1)
            self._keep(at, group, kept)

    def _inputs(self, at: Arrays, group: Group) -> tuple[Any, Any]:
        width = self.of.key_width
        qk, v = at.live(self.qk)[group.rows], at.live(self.mixed)[group.rows, 2 * width :]
        return np.concatenate([qk[:, width:], v, at.live(self.gates)[group.rows]], axis=1), qk[:, :width]

    def _keep(self, at: Arrays, group: Group, kept: Any) -> None:
        at[self.pending][group.sequence][(group.position + np.arange(group.count)) % RING_ROWS] = kept


@dataclass(frozen=True, eq=False)
class DeltaChunk(DeltaRule):
    """Chunk form: settles, then whole blocks of 64 rows; the state is stored, and written out at taps."""

    kind: ClassVar[str] = "delta_chunk"
    writes: ClassVar[tuple[str, ...]] = ("state", "out")
    tap_positions: Buffer
    tap_slots: Buffer

    def run_float(self, at: Arrays) -> None:
        self._run_blocks(at, advance_float, advance_float)

    def run_contract(self, at: Arrays) -> None:
        self._run_blocks(at, advance_contract, block_contract)

    def _run_blocks(self, at: Arrays, advance: Advance, block: Advance) -> None:
        for group in groups(at, self.positions, self.sequences):
            state = self._settled(at, group, advance)
            kept, q = self._inputs(at, group)
            wanted = dict(taps(at, self.tap_positions, self.tap_slots, group))
            for i in range(0, group.count, CHUNK_BLOCK):
                part = slice(i, i + CHUNK_BLOCK)
                state, out = block(state, self.of.rows(kept[part], q[part]))
                at.live(self.out)[group.rows][part] = out.reshape(len(out), -1)
                if group.position + part.stop in wanted:
                    at[self.state][wanted[group.position + part.stop]] = state
            at[self.state][group.sequence] = state


def delta_rule(b: Builder, qk: Buffer, mixed: Buffer, gates: Buffer, layer: DeltaState) -> Buffer:
    """[rows, value_heads * value_dim], in the program's form.

    qk: unit queries and keys; mixed: the convolved [q | k | v], of which v is read; gates: beta, then log decay.
    """
    heads, s = layer.value_heads, b.steps
    expect(
        heads % layer.key_heads == 0,
        f"{heads} value heads over {layer.key_heads} key heads is not a whole ratio",
    )
    expect_width(qk, 2 * layer.key_width)
    expect_width(mixed, 2 * layer.key_width + layer.value_width)
    expect_width(gates, 2 * heads)
    out = b.rows(layer.value_width, "delta", like=qk)
    common = (s.positions, s.sequences, s.commits, layer.state, layer.pending, layer.key_heads, layer.tiled)
    if b.form == "chunk":
        b.emit(DeltaChunk(*common, qk, mixed, gates, out, s.tap_positions, s.tap_slots))
    else:
        b.emit(DeltaRule(*common, qk, mixed, gates, out))
    return out


def delta_settle(b: Builder, layer: DeltaState) -> None:
    """Makes the committed rows of the step's sequences state; `commits` must be 0 afterwards."""
    s = b.steps
    b.emit(
        DeltaSettle(
            s.positions, s.sequences, s.commits, layer.state, layer.pending, layer.key_heads, layer.tiled
        )
    )
