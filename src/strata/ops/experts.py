"""Routed experts: the two products of a SwiGLU expert for every (token, expert) pair of a step, grouped by expert.

A stack of experts is a Weight [num_experts, n, k] whose data is [num_experts, bytes of one expert]; experts may lie
apart (a part of a merged tensor). Experts that no row chose are not touched.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from strata.ops.arithmetic import silu32
from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.expert_groups import ExpertGroups
from strata.ops.linear import contract_rows, float_rows
from strata.ops.op import Q8, Arrays, Op
from strata.ops.quantize import quantize_rows, quantized
from strata.ops.shapes import expect, expect_shape

Float32 = NDArray[np.float32]
Indices = NDArray[np.int32]


@dataclass(frozen=True)
class ExpertWeights:
    """The experts of a layer. A scale is F32 [num_experts], on its plane's products (NVFP4 files)."""

    gate: Weight  # [num_experts, intermediate, hidden]
    up: Weight  # [num_experts, intermediate, hidden]
    down: Weight  # [num_experts, hidden, intermediate]
    gate_scale: Weight | None = None
    up_scale: Weight | None = None
    down_scale: Weight | None = None

    def check(self, hidden: int) -> None:
        """ModelFileError unless the shapes agree with each other and with rows of `hidden` values."""
        expect(
            len(self.gate.shape) == 3,
            f"tensor {self.gate.name} has shape {list(self.gate.shape)}, expected [experts, features, values]",
        )
        experts, intermediate, _ = self.gate.shape
        expect_shape(self.gate, experts, intermediate, hidden)
        expect_shape(self.up, experts, intermediate, hidden)
        expect_shape(self.down, experts, hidden, intermediate)
        for scale in (self.gate_scale, self.up_scale, self.down_scale):
            if scale is not None:
                expect_shape(scale, experts)


@dataclass(frozen=True, eq=False)
class _ExpertOp(Op):
    """Shared parts of the two products."""

    pairs: Buffer
    offsets: Buffer
    k: int  # experts per token

    def row_weight_bytes(self) -> int:
        """Of every plane, the experts that one row chooses."""
        return sum(w.nbytes // w.shape[0] * self.k for w in self.weights if len(w.shape) == 3)

    def _groups(self, at: Arrays) -> Iterator[tuple[int, Indices]]:
        """Experts that some row chose, with their pairs."""
        pairs, offsets = at[self.pairs], at[self.offsets]
        for expert in np.flatnonzero(np.diff(offsets)):
            yield int(expert), pairs[offsets[expert] : offsets[expert + 1]]


@dataclass(frozen=True, eq=False)
class ExpertGateUp(_ExpertOp):
    """out[p] = silu(gate_e x[p // k]) * (up_e x[p // k]) for every pair p of expert e; quantised if `out` is q8."""

    kind: ClassVar[str] = "expert_gate_up"
    x: Buffer | None  # f32 [rows, hidden]; None where both planes are quantised
    q8: Buffer | None  # q8 [rows, hidden]; None where both planes are float
    gate: Weight
    up: Weight
    gate_scale: Weight | None
    up_scale: Weight | None
    out: Buffer  # f32 or q8 [rows * k, intermediate]

    def run_float(self, at: Arrays) -> None:
        for expert, pairs in self._groups(at):
            gate, up = self._planes(at, expert, pairs, contract=False)
            with np.errstate(over="ignore"):
                at[self.out][pairs] = gate / (1 + np.exp(-gate)) * up

    def run_contract(self, at: Arrays) -> None:
        out = at[self.out]
        for expert, pairs in self._groups(at):
            gate, up = self._planes(at, expert, pairs, contract=True)
            hidden = silu32(gate) * up
            if isinstance(out, Q8):
                out.codes[pairs], out.scales[pairs], out.sums[pairs] = quantize_rows(hidden)
            else:
                out[pairs] = hidden

    def _planes(self, at: Arrays, expert: int, pairs: Indices, contract: bool) -> tuple[Float32, Float32]:
        rows = pairs // self.k
        return (
            _product(at, self.x, self.q8, rows, self.gate, self.gate_scale, expert, contract),
            _product(at, self.x, self.q8, rows, self.up, self.up_scale, expert, contract),
        )


@dataclass(frozen=True, eq=False)
class ExpertDown(_ExpertOp):
    """out[p] = down_e x[p] for every pair p of expert e."""

    kind: ClassVar[str] = "expert_down"
    x: Buffer  # f32 or q8 [rows * k, intermediate]
    weight: Weight
    scale: Weight | None
    out: Buffer  # f32 [rows * k, hidden]

    def run_float(self, at: Arrays) -> None:
        self._run(at, contract=False)

    def run_contract(self, at: Arrays) -> None:
        self._run(at, contract=True)

    def _run(self, at: Arrays, contract: bool) -> None:
        for expert, pairs in self._groups(at):
            at[self.out][pairs] = _product(
                at, self.x, self.x, pairs, self.weight, self.scale, expert, contract
            )


def _product(
    at: Arrays,
    x: Buffer | None,
    q8: Buffer | None,
    rows: Indices,
    stack: Weight,
    scale: Weight | None,
    expert: int,
    contract: bool,
) -> Float32:
    """Rows of the activations times one expert's matrix, times its scale."""
    weight = stack.part(expert)
    source = x if weight.is_float else q8
    assert source is not None, f"{stack} needs the other form of its input"
    array = at[source]
    if not contract:
        y: Float32 = array[rows] @ weight.decode().T
    elif isinstance(array, Q8):
        y = contract_rows(Q8(array.codes[rows], array.scales[rows], array.sums[rows]), weight)
    else:
        y = float_rows(array[rows], weight.decode())
    return y if scale is None else y * scale.decode()[expert]


def routed_experts(b: Builder, x: Buffer, groups: ExpertGroups, w: ExpertWeights) -> Buffer:
    """One row per (token, expert), f32 [rows * k, hidden], in pair order, from rows x [rows, hidden]."""
    w.check(x.shape[-1])
    experts, intermediate, hidden = w.gate.shape
    expect(
        experts == groups.num_experts,
        f"tensor {w.gate.name} has {experts} experts, the router {groups.num_experts}",
    )
    rows, planes = x.shape[0] * groups.k, (w.gate, w.up)
    inner = Buffer(f"inner.{x.name}", (rows, intermediate), "f32" if w.down.is_float else "q8")
    floats = x if any(p.is_float for p in planes) else None
    codes = None if all(p.is_float for p in planes) else quantized(b, x)
    group = (groups.pairs, groups.offsets, groups.k)
    b.emit(ExpertGateUp(*group, floats, codes, w.gate, w.up, w.gate_scale, w.up_scale, inner))
    out = Buffer(f"expert_rows.{x.name}", (rows, hidden))
    b.emit(ExpertDown(*group, inner, w.down, w.down_scale, out))
    return out
