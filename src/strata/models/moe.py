"""The mixture-of-experts half of a block, as every architecture that has one calls it."""

from dataclasses import dataclass
from typing import Self

from strata.errors import ModelFileError
from strata.gguf import ModelFile
from strata.models.weights import WeightReader
from strata.ops import (
    Buffer,
    Builder,
    ExpertWeights,
    Weight,
    combine,
    gated_add,
    group_by_expert,
    linear,
    routed_experts,
    router,
    silu_mul,
)


@dataclass(frozen=True)
class SharedExpert:
    """A SwiGLU that every token passes, under a scalar sigmoid gate of its own."""

    gate: Weight  # [1, hidden]
    gate_proj: Weight
    up_proj: Weight
    down_proj: Weight

    @classmethod
    def load(cls, w: WeightReader, prefix: str, hidden: int) -> Self | None:
        """The tensors `ffn_*_shexp` of a block; None where the file has no shared expert."""
        if f"{prefix}ffn_gate_inp_shexp.weight" not in w:
            return None
        gate = w.get(f"{prefix}ffn_gate_inp_shexp.weight", hidden)
        gate_proj = w.get(f"{prefix}ffn_gate_shexp.weight", -1, hidden)
        width = gate_proj.shape[0]
        return cls(
            gate=Weight(gate.name, gate.format, (1, hidden), gate.data),
            gate_proj=gate_proj,
            up_proj=w.get(f"{prefix}ffn_up_shexp.weight", width, hidden),
            down_proj=w.get(f"{prefix}ffn_down_shexp.weight", hidden, width),
        )

    def forward(self, b: Builder, x: Buffer, routed: Buffer) -> Buffer:
        """The routed experts' rows plus the gated shared one's."""
        inner = silu_mul(b, linear(b, x, self.gate_proj), linear(b, x, self.up_proj))
        return gated_add(b, routed, linear(b, inner, self.down_proj), linear(b, x, self.gate))


@dataclass(frozen=True)
class MoeWeights:
    """Router, routed experts and, where the file has one, the shared expert of one block."""

    router: Weight  # [num_experts, hidden]
    experts: ExpertWeights
    shared: SharedExpert | None
    num_experts_per_tok: int
    renormalise: bool  # the chosen experts' weights sum to 1

    @classmethod
    def load(
        cls,
        w: WeightReader,
        prefix: str,
        hidden: int,
        *,
        num_experts: int | None,
        num_experts_per_tok: int,
        renormalise: bool,
    ) -> Self:
        """The `ffn_*` tensors under `prefix` ("blk.0."), gate and up split or merged; sizes are the tensors'.

        `num_experts` is what the metadata says, None where it says nothing. ModelFileError names the tensor and both
        sizes where the router, the experts and the metadata disagree.
        """
        name = f"{prefix}ffn_gate_inp.weight"
        gate_inp = w.get(name, -1, hidden)
        found = gate_inp.shape[0]
        if num_experts not in (None, found):
            raise ModelFileError(
                f"{w.file.path}: tensor {name} has {found} experts, the metadata says {num_experts}"
            )
        if not 1 <= num_experts_per_tok <= found:
            raise ModelFileError(
                f"{w.file.path}: {num_experts_per_tok} experts a token of the {found} in tensor {name}"
            )
        return cls(
            router=gate_inp,
            experts=_experts(w, prefix, found, hidden),
            shared=SharedExpert.load(w, prefix, hidden),
            num_experts_per_tok=num_experts_per_tok,
            renormalise=renormalise,
        )

    def forward(self, b: Builder, x: Buffer) -> Buffer:
        """Rows [rows, hidden] of the block's feed-forward half from its normalised input x."""
        ids, weights = router(b, x, self.router, self.num_experts_per_tok, renormalise=self.renormalise)
        groups = group_by_expert(b, ids, self.router.shape[0])
        y = combine(b, routed_experts(b, x, groups, self.experts), weights)
        return y if self.shared is None else self.shared.forward(b, x, y)


@dataclass(frozen=True)
class MoeConfig:
    """Expert numbers of a file's metadata."""

    num_experts: int | None
    num_experts_per_tok: int
    renormalise: bool

    @classmethod
    def read(cls, file: ModelFile, architecture: str) -> Self:
        """`expert_count`, `expert_used_count`, `expert_weights_norm` (true where absent, as the family is)."""
        return cls(
            num_experts=file.get(f"{architecture}.expert_count", int, 0) or None,
            num_experts_per_tok=file.get(f"{architecture}.expert_used_count", int),
            renormalise=file.get(f"{architecture}.expert_weights_norm", bool, True),
        )

    def load(self, w: WeightReader, prefix: str, hidden: int) -> MoeWeights:
        """One block's weights."""
        return MoeWeights.load(
            w,
            prefix,
            hidden,
            num_experts=self.num_experts,
            num_experts_per_tok=self.num_experts_per_tok,
            renormalise=self.renormalise,
        )


def _experts(w: WeightReader, prefix: str, count: int, hidden: int) -> ExpertWeights:
    name = f"{prefix}ffn_gate_up_exps"
    if f"{name}.weight" in w:
        gate, up = _halves(w, f"{name}.weight", count, hidden)
        gate_scale = up_scale = w.floats(f"{name}.scale", count)
    else:
        gate = _stack(w.get(f"{prefix}ffn_gate_exps.weight", count, -1, hidden))
        up = _stack(w.get(f"{prefix}ffn_up_exps.weight", count, gate.shape[1], hidden))
        gate_scale = w.floats(f"{prefix}ffn_gate_exps.scale", count)
        up_scale = w.floats(f"{prefix}ffn_up_exps.scale", count)
    return ExpertWeights(
        gate=gate,
        up=up,
        down=_stack(w.get(f"{prefix}ffn_down_exps.weight", count, hidden, gate.shape[1])),
        gate_scale=gate_scale,
        up_scale=up_scale,
        down_scale=w.floats(f"{prefix}ffn_down_exps.scale", count),
    )


def _stack(weight: Weight) -> Weight:
    """The tensor with its bytes split by expert, as `strata.ops.experts` takes it."""
    return Weight(weight.name, weight.format, weight.shape, weight.data.reshape(weight.shape[0], -1))


def _halves(w: WeightReader, name: str, count: int, hidden: int) -> tuple[Weight, Weight]:
    """Gate and up of a merged tensor [experts, 2 * intermediate, hidden], gate rows first; bytes are not copied."""
    merged = _stack(w.get(name, count, -1, hidden))
    rows, half = merged.shape[1], merged.data.shape[1] // 2
    if rows % 2:
        raise ModelFileError(
            f"{w.file.path}: tensor {name} has {rows} rows an expert; gate and up need an even number"
        )
    shape = (count, rows // 2, hidden)
    return (
        Weight(f"{name} (gate)", merged.format, shape, merged.data[:, :half]),
        Weight(f"{name} (up)", merged.format, shape, merged.data[:, half:]),
    )
