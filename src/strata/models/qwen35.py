"""qwen35: the dense hybrid of Qwen3.5 and later; value heads tiled over key heads, a SwiGLU after every mixer."""

from dataclasses import dataclass
from typing import Self

from strata.gguf import ModelFile
from strata.models.hybrid import Hybrid, attach_hybrid_draft, load_hybrid
from strata.models.weights import WeightReader
from strata.ops import Buffer, Builder, Weight, linear, silu_mul

ARCHITECTURES = ("qwen35",)


@dataclass(frozen=True)
class SwiGlu:
    """A dense feed-forward half."""

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
        return linear(
            b, silu_mul(b, linear(b, x, self.gate_proj), linear(b, x, self.up_proj)), self.down_proj
        )


def load(file: ModelFile) -> Hybrid:
    """The model in a file."""
    return load_hybrid(file, SwiGlu.load)


def attach_draft(model: Hybrid, file: ModelFile) -> Hybrid:
    """The model with the draft layer of a file."""
    return attach_hybrid_draft(model, file, SwiGlu.load)
