"""The dense feed-forward half of a block: a SwiGLU (Shazeer 2020)."""

from dataclasses import dataclass
from typing import Self

from strata.models.weights import WeightReader
from strata.ops import Buffer, Builder, Weight, linear, silu_mul


@dataclass(frozen=True)
class SwiGlu:
    """Its three matrices."""

    gate_proj: Weight
    up_proj: Weight
    down_proj: Weight

    @classmethod
    def load(cls, w: WeightReader, prefix: str, hidden: int) -> Self:
        """The tensors `ffn_*` of a block; the width is the tensors'."""
        gate_proj = w.get(prefix + "ffn_gate.weight", -1, hidden)
        width = gate_proj.shape[0]
        return cls(
            gate_proj=gate_proj,
            up_proj=w.get(prefix + "ffn_up.weight", width, hidden),
            down_proj=w.get(prefix + "ffn_down.weight", hidden, width),
        )

    def forward(self, b: Builder, x: Buffer) -> Buffer:
        """[rows, hidden] from the normed input."""
        hidden = silu_mul(b, linear(b, x, self.gate_proj), linear(b, x, self.up_proj))
        return linear(b, hidden, self.down_proj)
