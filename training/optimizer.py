"""Muon (Jordan 2024) for matrices, AdamW for the rest."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from training.model import Model

# Coefficients of the quintic iteration (Jordan 2024).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ADAM_RATES = (  # name part, learning rate relative to the schedule's
    ("embed_tokens", 1.5),
    ("ngram_embedding", 2.0),
    ("lm_head", 0.6),
    ("", 0.6),
)


def orthogonal(x: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices of [n, rows, columns], roughly, by Newton-Schulz in bfloat16."""
    turned = x.shape[-2] > x.shape[-1]
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    x = x.transpose(1, 2) if turned else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.transpose(1, 2)
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.transpose(1, 2) if turned else x


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon takes it: inner matrices; not tables, the router, nor maps to a handful of values."""
    outer = (
        "embed",
        "lm_head",
        "mlp.gate.weight",
        "block_inject",
        "in_proj_a",
        "in_proj_b",
        "shared_expert_gate",
    )
    return parameter.ndim >= 2 and "conv1d" not in name and not any(part in name for part in outer)


class Muon:
    """Momentum, then the orthogonal part, scaled as an AdamW step would be (Liu et al. 2025)."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], momentum: float = 0.95, decay: float = 0.05):
        self.parameters = dict(named)
        self.momentum = {name: torch.zeros_like(p) for name, p in named}
        self.beta, self.decay = momentum, decay

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Parameters without a gradient are left alone."""
        shaped: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name, p in self.parameters.items():
            if p.grad is not None:
                shaped[(self._split(name, p).shape[-2], p.shape[-1])].append(name)
        for (rows, columns), names in shaped.items():
            updates = []
            for name in names:
                grad, kept = self.parameters[name].grad, self.momentum[name]
                assert grad is not None
                kept.lerp_(grad, 1 - self.beta)
                updates.append(self._split(name, grad.lerp(kept, self.beta)))
            found = orthogonal(torch.cat(updates)).float() * (0.2 * max(rows, columns) ** 0.5 * rate)
            for name, part in zip(names, found.split([len(u) for u in updates]), strict=True):
                p = self.parameters[name]
                p.mul_(1 - rate * self.decay).sub_(part.reshape(p.shape))

    @staticmethod
    def _split(name: str, x: Tensor) -> Tensor:
        """[matrices, rows, columns]; gate and up are two."""
        return (
            x.reshape(-1, x.shape[1] // 2, x.shape[2]) if "gate_up" in name else x.reshape(-1, *x.shape[-2:])
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Momentum by parameter name."""
        return self.momentum

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes what `state_dict` gave."""
        for name, kept in self.momentum.items():
            kept.copy_(state[name])


class Optimizer:
    """Both, under one learning rate."""

    def __init__(self, model: Model):
        named = list(model.named_parameters())
        self.muon = Muon([(n, p) for n, p in named if is_matrix(n, p)])
        groups: list[dict[str, Any]] = [{"params": [], "scale": scale, "lr": 0.0} for _, scale in _ADAM_RATES]
        for name, p in named:
            if not is_matrix(name, p):
                place = next(i for i, (part, _) in enumerate(_ADAM_RATES) if part in name)
                groups[place]["params"].append(p)
        self.adam = torch.optim.AdamW(
            [g for g in groups if g["params"]], betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, foreach=True
        )
        self.parameters = [p for _, p in named]

    def step(self, rate: float) -> None:
        """One update; gradients are cleared."""
        for group in self.adam.param_groups:
            group["lr"] = rate * group["scale"]
        self.adam.step()
        self.muon.step(rate)
        for p in self.parameters:
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        """State of both."""
        return {"adam": self.adam.state_dict(), "muon": self.muon.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        self.adam.load_state_dict(state["adam"])
        self.muon.load_state_dict(state["muon"])
