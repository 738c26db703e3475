"""linear_some: a product with those rows of a quantised weight that a list names; other columns stay as they are."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strata.ops.buffers import Buffer, Weight
from strata.ops.builder import Builder
from strata.ops.linear import contract_rows
from strata.ops.op import Arrays, Op
from strata.ops.quantize import quantized
from strata.ops.shapes import expect, expect_width


@dataclass(frozen=True, eq=False)
class LinearSome(Op):
    """out[r, i] = x[r] . weight[i] for every i that the live part of `ids` names, in the contract's block order."""

    kind: ClassVar[str] = "linear_some"
    x: Buffer  # q8 [rows, k]
    weight: Weight  # [n, k]
    ids: Buffer  # i32 [most], distinct rows of the weight; `live` says how many there are
    out: Buffer  # f32 [rows, n]

    def row_weight_bytes(self) -> int:
        """As if all rows were named."""
        return self.weight.nbytes

    def run_float(self, at: Arrays) -> None:
        ids = at.live(self.ids)
        at.live(self.out)[:, ids] = at.live(self.x) @ at.decoded(self.weight)[ids].T

    def run_contract(self, at: Arrays) -> None:
        ids, rows = at.live(self.ids), self.weight.data.reshape(self.weight.shape[0], -1)
        some = np.ascontiguousarray(rows[ids]).reshape(-1)
        part = Weight(self.weight.name, self.weight.format, (len(ids), self.weight.shape[1]), some)
        at.live(self.out)[:, ids] = contract_rows(at.live(self.x), part)


def linear_some(b: Builder, x: Buffer, weight: Weight, ids: Buffer, out: Buffer) -> Buffer:
    """Columns `ids` of out [rows, n] from x [rows, k] and the weight [n, k]."""
    n, k = weight.shape
    expect(not weight.is_float, f"tensor {weight.name} has float values; some of its rows cannot be taken")
    expect(x.shape[-1] == k, f"tensor {weight.name} takes {k} values a row, but its input has {x.shape[-1]}")
    expect(ids.live is not None, f"{ids} has no live count")
    expect_width(out, n)
    b.emit(LinearSome(quantized(b, x), weight, ids, out))
    return out
