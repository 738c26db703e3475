"""What rounding to block formats adds to weights, so that the last part of training can learn with it.

The gradient passes as if nothing were added (Bengio et al. 2013). The searches are coarser than those of
`strata.quants`, which writes the file.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.model import Model

_GRIDS = Path(__file__).resolve().parent.parent / "src/strata/quants/grids.npz"
_REACH = torch.linspace(0.6, 1.15, 8)  # candidates for scale * 62 / amax
_Q2_REACH = (1 / 1.2, 1 / 1.5, 1 / 1.8, 1 / 2.1, 1 / 2.5)


def grid() -> Tensor:
    """float32 [256, 4]: magnitudes of IQ3_XXS."""
    with np.load(_GRIDS) as grids:
        return torch.from_numpy(grids["IQ3_XXS"].astype(np.float32))


def iq3_xxs(w: Tensor, table: Tensor) -> Tensor:
    """w [..., k] as IQ3_XXS would hold it: scales of 32, signs of 8 with an even number of minuses."""
    x = w.reshape(-1, 8, 32)
    size = x.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    signs, magnitudes = _even_signs(x)
    best, error = size / 62, torch.full_like(size, torch.inf)
    for reach in _REACH.tolist():
        scale = size * (reach / 62)
        found = (magnitudes - scale * _nearest(magnitudes / scale, table)).square().sum(-1, keepdim=True)
        best, error = torch.where(found < error, scale, best), torch.minimum(found, error)
    step = (best.amax(1, keepdim=True) / 31).half().float().clamp_min(1e-12)
    scale = step * (2 * ((best / step - 1) / 2).round().clamp(0, 15) + 1)
    return (signs * scale * _nearest(magnitudes / scale, table)).view_as(w)


def _even_signs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Signs with an even number of minuses in every 8, and x by those signs (one may be below 0)."""
    eights = x.unflatten(-1, (-1, 8))
    signs = torch.where(eights < 0, -1.0, 1.0)
    odd = signs.prod(-1, keepdim=True) < 0
    least = torch.zeros_like(signs).scatter_(-1, eights.abs().argmin(-1, keepdim=True), 1.0)
    signs = torch.where(odd & (least > 0), -signs, signs)
    return signs.view_as(x), (signs * eights).view_as(x)


def _nearest(x: Tensor, table: Tensor) -> Tensor:
    fours = x.reshape(-1, 4)
    index = torch.addmm(-table.square().sum(-1) / 2, fours, table.T).argmax(-1)
    return table[index].view_as(x)


def q2_0(w: Tensor) -> Tensor:
    """w [..., k] as Q2_0 would hold it: codes -1, 0, 1, 2 times a scale of 64, which may be negative."""
    x = w.reshape(-1, 64)
    size = x.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    best, error = torch.zeros_like(x), torch.full_like(size, torch.inf)
    for reach in _Q2_REACH:
        for first in (size * reach, -size * reach):
            scale = first
            for _ in range(2):
                codes = (x / scale).round().clamp(-1, 2)
                fit = (x * codes).sum(-1, keepdim=True) / codes.square().sum(-1, keepdim=True).clamp_min(1)
                scale = torch.where(fit == 0, scale, fit)
            found = (x - scale * codes).square().sum(-1, keepdim=True)
            best = torch.where(found < error, scale * codes, best)
            error = torch.minimum(found, error)
    return best.view_as(w)


@torch.no_grad()
def refresh(model: Model, table: Tensor) -> None:
    """Rounds the experts' weights again and keeps the differences."""
    for block in [*model.model.layers, *model.mtp.layers]:
        experts = block.mlp.experts
        block.mlp.noise_gate_up.copy_(iq3_xxs(experts.gate_up_proj, table) - experts.gate_up_proj)
        block.mlp.noise_down.copy_(q2_0(experts.down_proj) - experts.down_proj)
