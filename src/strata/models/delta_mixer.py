"""The gated delta rule as a mixer: projections, convolution, recurrence, gated norm (Yang et al. 2024)."""

from dataclasses import dataclass
from typing import Self

from strata.errors import ModelFileError, UnsupportedError
from strata.memory import DeltaShape, RingShape, StatePool
from strata.models.metadata import Metadata
from strata.models.weights import WeightReader
from strata.ops import (
    Buffer,
    Builder,
    Weight,
    causal_conv,
    delta_gates,
    delta_rule,
    gated_norm,
    linear,
    packed_delta_gates,
    unit_heads,
)


@dataclass(frozen=True)
class DeltaMixer:
    """Weights of one block. `ba_proj` stands for `beta_proj` and `alpha_proj` where a file packs them by key head."""

    qkv_proj: Weight  # queries, keys, values
    z_proj: Weight
    beta_proj: Weight | None
    alpha_proj: Weight | None
    ba_proj: Weight | None
    conv: Weight  # [channels, kernel], the last tap meets the newest column
    rate: Weight  # [value_heads], -exp(A)
    bias: Weight  # [value_heads]
    norm: Weight  # [value_dim]
    out_proj: Weight
    shape: DeltaShape
    silu_gate: bool
    eps: float
    place: int  # among the delta-rule layers

    @classmethod
    def load(
        cls, w: WeightReader, m: Metadata, prefix: str, hidden: int, place: int, *, silu_gate: bool
    ) -> Self:
        """The tensors `ssm_*`, `attn_qkv` and `attn_gate` of a block, whose value heads must divide by key heads."""
        if prefix + "ssm_in.weight" in w:
            raise UnsupportedError(
                f"{m.file.path}: {prefix}ssm_in packs all projections in one; supported: attn_qkv and attn_gate"
            )
        shape = _shape(m, tiled=prefix + "ssm_ba.weight" not in w)
        heads, values = shape.value_heads, shape.value_heads * shape.value_dim
        channels = 2 * shape.key_heads * shape.key_dim + values
        packed = w.maybe(prefix + "ssm_ba.weight", 2 * heads, hidden)
        separate = (
            None if packed else [w.get(f"{prefix}ssm_{x}.weight", heads, hidden) for x in ("beta", "alpha")]
        )
        conv = w.floats(prefix + "ssm_conv1d.weight", channels, m.positive("ssm.conv_kernel"))
        return cls(
            qkv_proj=w.get(prefix + "attn_qkv.weight", channels, hidden),
            z_proj=w.get(prefix + "attn_gate.weight", values, hidden),
            beta_proj=separate[0] if separate else None,
            alpha_proj=separate[1] if separate else None,
            ba_proj=packed,
            conv=conv or w.get(prefix + "ssm_conv1d.weight", channels, m.positive("ssm.conv_kernel")),
            rate=w.vector(prefix + "ssm_a", heads),
            bias=w.vector(prefix + "ssm_dt.bias", heads),
            norm=w.vector(prefix + "ssm_norm.weight", shape.value_dim),
            out_proj=w.get(prefix + "ssm_out.weight", hidden, values),
            shape=shape,
            silu_gate=silu_gate,
            eps=m.real("attention.layer_norm_rms_epsilon"),
            place=place,
        )

    @property
    def ring(self) -> RingShape:
        """Columns that the convolution reads again."""
        return RingShape(self.conv.shape[0], self.conv.shape[1] - 1)

    def forward(self, b: Builder, x: Buffer, state: StatePool) -> Buffer:
        """The mixer's output [rows, hidden] from its normed input; ring `place` holds the convolution's columns."""
        layer, s = state.delta[self.place], self.shape
        mixed = causal_conv(b, linear(b, x, self.qkv_proj), self.conv, state.rings[self.place])
        qk = unit_heads(b, mixed, s.key_heads, s.key_dim)
        y = delta_rule(b, qk, mixed, self._gates(b, x), layer)
        y = gated_norm(b, y, linear(b, x, self.z_proj), self.norm, self.eps, silu=self.silu_gate)
        return linear(b, y, self.out_proj)

    def _gates(self, b: Builder, x: Buffer) -> Buffer:
        if self.ba_proj is not None:
            ratio = self.shape.value_heads // self.shape.key_heads
            return packed_delta_gates(b, linear(b, x, self.ba_proj), ratio, self.rate, self.bias)
        assert self.beta_proj is not None
        assert self.alpha_proj is not None
        return delta_gates(
            b, linear(b, x, self.beta_proj), linear(b, x, self.alpha_proj), self.rate, self.bias
        )


def _shape(m: Metadata, tiled: bool) -> DeltaShape:
    key_heads, value_heads = m.positive("ssm.group_count"), m.positive("ssm.time_step_rank")
    inner = m.positive("ssm.inner_size")
    if value_heads % key_heads or inner % value_heads:
        raise ModelFileError(
            f"{m.file.path}: {inner} values in {value_heads} value heads over {key_heads} key heads do not divide"
        )
    return DeltaShape(key_heads, value_heads, m.positive("ssm.state_size"), inner // value_heads, tiled)
