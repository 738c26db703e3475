"""The gated delta rule (Yang et al. 2024) in chunks of 64: what is sequential is one small product a chunk."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.basic import DepthwiseConv, Linear
from training.config import ModelConfig
from training.fused import fused

CHUNK = 64


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower A [..., n, n], n a power of two, by halves: stable as forward substitution."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        n = a.shape[-1]
        inverse = torch.eye(n, dtype=a.dtype, device=a.device).expand_as(a).contiguous()
        size = 1
        while size < n:
            blocks = n // (2 * size)
            shape = (*a.shape[:-2], blocks, 2, size, blocks, 2, size)
            # [..., size, size, blocks] of the diagonal blocks: their corners, and what stands below the first.
            corner = torch.diagonal(a.view(shape)[..., 1, :, :, 0, :], dim1=-4, dim2=-2).movedim(-1, -3)
            found = inverse.view(shape)
            upper = torch.diagonal(found[..., 0, :, :, 0, :], dim1=-4, dim2=-2).movedim(-1, -3)
            lower = torch.diagonal(found[..., 1, :, :, 1, :], dim1=-4, dim2=-2).movedim(-1, -3)
            below = -(lower @ corner @ upper)
            inverse = inverse + _place_below(below, shape).view_as(a)
            size *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        turned = inverse.transpose(-1, -2)
        return -(turned @ grad @ turned).tril(-1)


def _place_below(below: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Blocks [..., blocks, size, size] at the lower left of each diagonal block of a matrix that is 0 elsewhere."""
    blocks = shape[-3]
    spread = below.unsqueeze(-2) * torch.eye(blocks, dtype=below.dtype, device=below.device).view(
        blocks, 1, blocks, 1
    )
    zero = torch.zeros_like(spread)
    rows = torch.stack([zero, spread], dim=-4)  # below the first half of rows
    return torch.stack([rows, torch.zeros_like(rows)], dim=-2)  # under the first half of columns


class StateScan(torch.autograd.Function):
    """States before each chunk: S_0 = 0, S_{c+1} = P_c S_c + B_c. P, B [batch, chunks, k, k or v]."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, b: Tensor) -> Tensor:
        states = [torch.zeros_like(b[:, 0])]
        for chunk in range(p.shape[1] - 1):
            states.append(torch.baddbmm(b[:, chunk], p[:, chunk], states[-1]))
        found = torch.stack(states, 1)
        ctx.save_for_backward(p, found)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        p, states = ctx.saved_tensors
        later = [torch.zeros_like(grad[:, 0])]  # gradient of each S_{c+1}, from the last chunk on
        for chunk in range(p.shape[1] - 1, 0, -1):
            later.append(torch.baddbmm(grad[:, chunk], p[:, chunk].transpose(1, 2), later[-1]))
        to_b = torch.stack(later[::-1], 1)
        return to_b @ states.transpose(-1, -2), to_b


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    """q, k, v [batch, time, heads, dim], beta, g (log decay) [batch, time, heads]; time a multiple of CHUNK."""
    batch, time, heads, dim = q.shape
    chunks = time // CHUNK

    def chunked(x: Tensor) -> Tensor:
        """[batch * heads * chunks, CHUNK, ...]"""
        return x.transpose(1, 2).reshape(batch * heads * chunks, CHUNK, *x.shape[3:])

    q, k, v, beta, g = (chunked(x) for x in (q, k, v, beta, g))
    total = g.cumsum(-1)
    keys, values, forget, add = _within(k, v, beta, total)
    states = StateScan.apply(*(x.view(batch * heads, chunks, dim, dim) for x in (forget, add)))
    out = _across(q, k, total, keys, values, states.view_as(forget))
    return out.view(batch, heads, time, dim).transpose(1, 2)


def _decay(total: Tensor) -> Tensor:
    """exp(G_i - G_j) for i >= j, else 0."""
    return (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()


@fused
def _within(k: Tensor, v: Tensor, beta: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a chunk's rows ask of the state before it and add to it, and the two halves of the state's step."""
    k_beta = k * beta.unsqueeze(-1)
    inverse = UnitLowerInverse.apply((k_beta @ k.transpose(-1, -2) * _decay(total)).tril(-1))
    values = inverse @ (v * beta.unsqueeze(-1))
    keys = inverse @ (k_beta * total.exp().unsqueeze(-1))
    last = total[..., -1:]
    k_end = (k * (last - total).exp().unsqueeze(-1)).transpose(-1, -2)
    eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    return keys, values, last.exp().unsqueeze(-1) * eye - k_end @ keys, k_end @ values


@fused
def _across(q: Tensor, k: Tensor, total: Tensor, keys: Tensor, values: Tensor, states: Tensor) -> Tensor:
    new = values - keys @ states
    return (q * total.exp().unsqueeze(-1)) @ states + (q @ k.transpose(-1, -2) * _decay(total)) @ new


class OutputNorm(nn.Module):
    """RMS norm of each head with a plain weight."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """x, z [rows, heads * dim]; z is the gate."""
        return _gated_norm(x, z, self.weight, self.eps)


@fused
def _gated_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    heads = x.float().unflatten(-1, (-1, len(weight)))
    heads = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps) * weight
    return (heads.flatten(-2) * torch.sigmoid(z.float())).to(z.dtype)


@fused
def _split(mixed: Tensor, key_width: int, dim: int, repeat: int) -> tuple[Tensor, Tensor, Tensor]:
    """Convolved rows [rows, channels] to q, k, v [rows, value heads, dim] in float32, q and k of length 1."""
    parts = (
        F.silu(mixed.float())
        .unflatten(-1, (-1, dim))
        .split_with_sizes(
            [key_width // dim, key_width // dim, mixed.shape[1] // dim - 2 * key_width // dim], dim=1
        )
    )
    q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6) for part in parts[:2])
    q, k = (part.repeat_interleave(repeat, dim=1) for part in (q / math.sqrt(dim), k))
    return q, k, parts[2].contiguous()


class DeltaMixer(nn.Module):
    """x [batch, time, hidden] to the same, time a multiple of CHUNK."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.c = c
        heads = c.linear_num_value_heads
        self.in_proj_qkv = Linear(c.hidden_size, 2 * c.key_width + c.value_width)
        self.in_proj_z = Linear(c.hidden_size, c.value_width)
        self.in_proj_b = Linear(c.hidden_size, heads)
        self.in_proj_a = Linear(c.hidden_size, heads, gain=0.3)
        self.conv1d = DepthwiseConv(2 * c.key_width + c.value_width, c.linear_conv_kernel_dim)
        self.dt_bias = nn.Parameter(torch.linspace(-4.5, -1.0, heads))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.norm = OutputNorm(c.linear_head_dim, c.rms_norm_eps)
        self.out_proj = Linear(c.value_width, c.hidden_size, gain=0.5)

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        batch, time, _ = x.shape
        mixed = self.conv1d(self.in_proj_qkv(x)).flatten(0, 1)
        repeat = c.linear_num_value_heads // c.linear_num_key_heads
        q, k, v = (
            part.view(batch, time, *part.shape[1:])
            for part in _split(mixed, c.key_width, c.linear_head_dim, repeat)
        )
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        y = delta_rule(q, k, v, torch.sigmoid(self.in_proj_b(x).float()), g)
        return self.out_proj(self.norm(y.flatten(-2).flatten(0, 1), self.in_proj_z(x).flatten(0, 1))).view_as(
            x
        )
