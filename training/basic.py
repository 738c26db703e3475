"""Small parts: linear maps in the input's type, norms with zero-centred weights, rotary positions."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.fused import fused


class Linear(nn.Module):
    """x [..., k] to [..., n]; the weight is kept in float32 and used in the type of x."""

    def __init__(self, k: int, n: int, gain: float = 1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, k) * (gain / math.sqrt(k)))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """RMS norm over groups of `width` values of the last axis; the weight is an offset from 1."""

    def __init__(self, size: int, width: int | None = None, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.width, self.eps = width or size, eps

    def forward(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return rms_norm(x, self.weight, self.width, self.eps).to(dtype or x.dtype)


def rms_norm(x: Tensor, weight: Tensor, width: int, eps: float) -> Tensor:
    """In float32; statistics over groups of `width` values."""
    wide = x.float().unflatten(-1, (-1, width))
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide.flatten(-2) * (1 + weight)


class DepthwiseConv(nn.Module):
    """Causal, one filter a channel: weight [channels, 1, taps], the last tap meets the newest row."""

    def __init__(self, channels: int, taps: int, dilation: int = 1):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) / math.sqrt(taps))
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, time, channels]."""
        return _conv(x, self.weight[:, 0], self.dilation)


@fused
def _conv(x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    taps, time = weight.shape[1], x.shape[1]
    weight = weight.to(x.dtype)
    padded = F.pad(x, (0, 0, (taps - 1) * dilation, 0))
    out = weight[:, taps - 1] * x
    for tap in range(taps - 1):
        start = tap * dilation
        out = out + weight[:, tap] * padded[:, start : start + time]
    return out


def rope_tables(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin [time, rotary_dim / 2]."""
    pairs = torch.arange(0, rotary_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions[:, None].float() * (1.0 / theta ** (pairs / rotary_dim))
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [batch, time, heads, dim]: pairs (i, i + pairs) of the first 2 pairs values turn, the others pass."""
    pairs = cos.shape[-1]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
