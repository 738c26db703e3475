"""Routed experts by grouped products: rows sorted by expert, nothing dropped, gradients by gathers alone."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.basic import Linear
from training.config import ModelConfig
from training.fused import fused

ALIGN = 16  # rows of an expert are padded to a multiple, as grouped products want


class Places:
    """Where the rows of (token, rank) pairs lie: sorted by expert, every expert's rows padded with empty ones."""

    def __init__(self, chosen: Tensor, experts: int):
        """`chosen` [tokens, k]: experts."""
        flat = chosen.flatten()
        order = torch.argsort(flat, stable=True)
        counts = _counts(flat, experts)
        padded = (counts + ALIGN - 1) // ALIGN * ALIGN
        ends, true_ends = padded.cumsum(0), counts.cumsum(0)
        shift = (ends - padded) - (true_ends - counts)
        self.rows = flat.numel() + experts * ALIGN
        place = torch.arange(flat.numel(), device=flat.device) + shift[flat[order]]
        self.slots = torch.empty_like(flat).scatter_(0, order, place).view_as(chosen)  # [tokens, k] to row
        empty = torch.full((self.rows,), flat.numel(), device=flat.device, dtype=flat.dtype)
        self.pairs = empty.scatter_(0, place, order)  # row to pair; flat.numel() where there is none
        self.counts = counts
        ends = ends.clone()
        ends[-1] = self.rows
        self.ends = ends.int()


def _counts(flat: Tensor, experts: int) -> Tensor:
    ones = torch.ones_like(flat)
    return torch.zeros(experts, dtype=flat.dtype, device=flat.device).scatter_add_(0, flat, ones)


class Dispatch(torch.autograd.Function):
    """x [tokens, n] to rows [rows, n]; empty rows are 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pairs: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        tokens, k = slots.shape
        padded = torch.cat([x, x.new_zeros(1, x.shape[1])])
        return padded[torch.clamp(pairs // k, max=tokens)]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (slots,) = ctx.saved_tensors
        return _gather_sum(grad, slots), None, None


class Combine(torch.autograd.Function):
    """Rows [rows, n] and weights [tokens, k] to [tokens, n]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, pairs: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, pairs, slots)
        return _gather_weighted(rows, weights, slots)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rows, weights, pairs, slots = ctx.saved_tensors
        to_rows = _spread(grad, torch.cat([weights.flatten(), weights.new_zeros(1)]), pairs, slots.shape[1])
        return to_rows, _share_gradient(rows, grad, slots), None, None


@fused
def _gather_sum(rows: Tensor, slots: Tensor) -> Tensor:
    return rows[slots].float().sum(1).to(rows.dtype)


@fused
def _gather_weighted(rows: Tensor, weights: Tensor, slots: Tensor) -> Tensor:
    return (rows[slots].float() * weights.unsqueeze(-1)).sum(1).to(rows.dtype)


@fused
def _spread(grad: Tensor, weights: Tensor, pairs: Tensor, k: int) -> Tensor:
    """Gradient of every row; `weights` [pairs + 1] ends with a 0 for the empty ones."""
    source = torch.clamp(pairs // k, max=len(grad) - 1)
    return (grad[source].float() * weights[pairs].unsqueeze(-1)).to(grad.dtype)


@fused
def _share_gradient(rows: Tensor, grad: Tensor, slots: Tensor) -> Tensor:
    return (rows[slots].float() * grad.unsqueeze(1).float()).sum(-1)


@fused
def _swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """x [rows, k] times weight [experts, n, k], rows up to ends[e] being expert e's."""
    return torch._grouped_mm(x, weight.transpose(1, 2), ends)


class Router(nn.Module):
    """Softmax over all experts; the k largest, renormalised."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.k, self.experts = c.num_experts_per_tok, c.num_experts
        self.weight = nn.Parameter(torch.randn(c.num_experts, c.hidden_size) * 0.02)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [tokens, hidden] to chosen [tokens, k], weights [tokens, k], probabilities [tokens, experts]."""
        shares = torch.softmax(F.linear(x.float(), self.weight), dim=-1)
        top, chosen = torch.topk(shares, self.k, dim=-1)
        return chosen, top / top.sum(-1, keepdim=True), shares


class Experts(nn.Module):
    """Weights of all routed experts: gate rows, then up rows."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        e, f, h = c.num_experts, c.moe_intermediate_size, c.hidden_size
        self.gate_up_proj = nn.Parameter(torch.randn(e, 2 * f, h) / h**0.5)
        self.down_proj = nn.Parameter(torch.randn(e, h, f) * (0.5 / f**0.5))

    def forward(
        self, x: Tensor, chosen: Tensor, weights: Tensor, noise: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """x [tokens, hidden]. `noise`: what rounding will add to the two weights."""
        gate_up, down = self.gate_up_proj, self.down_proj
        if noise is not None:
            gate_up, down = gate_up + noise[0], down + noise[1]
        places = Places(chosen, len(gate_up))
        rows = Dispatch.apply(x, places.pairs, places.slots)
        inner = _swiglu(grouped(rows, gate_up.to(x.dtype), places.ends))
        rows = grouped(inner, down.to(x.dtype), places.ends)
        return Combine.apply(rows, weights, places.pairs, places.slots)


class SharedExpert(nn.Module):
    """SwiGLU that every token passes."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        width = c.shared_expert_intermediate_size
        self.gate_proj, self.up_proj = Linear(c.hidden_size, width), Linear(c.hidden_size, width)
        self.down_proj = Linear(width, c.hidden_size, gain=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MixtureOfExperts(nn.Module):
    """Router, routed experts, shared expert."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.gate, self.experts = Router(c), Experts(c)
        self.shared_expert, self.shared_expert_gate = SharedExpert(c), Linear(c.hidden_size, 1)
        self.noise_gate_up: Tensor | None = None
        self.noise_down: Tensor | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [batch, time, hidden]; the second result is the load-balance loss (Fedus et al. 2021), 1 at best."""
        flat = x.flatten(0, 1)
        chosen, weights, shares = self.gate(flat)
        noise = None if self.noise_gate_up is None else (self.noise_gate_up, self.noise_down)
        y = self.experts(flat, chosen, weights, noise)
        y = y + torch.sigmoid(self.shared_expert_gate(flat)) * self.shared_expert(flat)
        load = _counts(chosen.flatten(), self.gate.experts).float() / chosen.numel()
        balance = self.gate.experts * (load.detach() * shares.mean(0)).sum()
        return y.view_as(x), balance
