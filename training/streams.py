"""Hyper-connections: the residual is several streams, mixed before a sublayer and written back after it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.basic import Linear, Norm, rms_norm
from training.config import ModelConfig
from training.fused import fused


class StreamMixer(nn.Module):
    """Reads the streams [..., count * hidden] as one [..., hidden]; `inject` weighs what is written back."""

    def __init__(self, c: ModelConfig, inject: bool = True):
        super().__init__()
        self.count = c.hc_count
        self.hc_norm = Norm(c.wide, c.hidden_size, c.rms_norm_eps)
        self.input_mix_weight_down = Linear(c.wide, c.hc_lowrank)
        self.input_mix_weight_up = Linear(c.hc_lowrank, c.wide)
        if inject:
            self.block_inject_weight = Linear(c.wide, c.hc_count, gain=0.1)

    def read(self, residual: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The sublayer's input, and the normed streams [rows, wide] that `write` needs."""
        weights = (self.hc_norm.weight, self.input_mix_weight_down.weight, self.input_mix_weight_up.weight)
        mixed, normed = _read(residual.flatten(0, 1), *weights, self.count, self.hc_norm.eps, dtype)
        return mixed.view(*residual.shape[:2], -1), normed

    def write(self, residual: Tensor, normed: Tensor, y: Tensor) -> Tensor:
        """residual + y in every stream, each with its own weight from 0 to 2."""
        flat = _write(
            residual.flatten(0, 1), normed, y.flatten(0, 1), self.block_inject_weight.weight, self.count
        )
        return flat.view_as(residual)


@fused
def _read(
    residual: Tensor, norm: Tensor, down: Tensor, up: Tensor, count: int, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    normed = rms_norm(residual, norm, residual.shape[1] // count, eps).to(dtype)
    low = F.silu(F.linear(normed, down.to(dtype)) / count)
    gate = torch.sigmoid(F.linear(low, up.to(dtype)).float())
    mixed = (gate * normed.float()).view(len(residual), count, -1).mean(1)
    return mixed.to(dtype), normed


@fused
def _write(residual: Tensor, normed: Tensor, y: Tensor, inject: Tensor, count: int) -> Tensor:
    share = 2 * torch.sigmoid(F.linear(normed, inject.to(normed.dtype)).float() / count)
    return residual + (share.unsqueeze(-1) * y.float().unsqueeze(1)).flatten(1)
