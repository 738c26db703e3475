"""What a step minimises."""

import torch
import torch.nn.functional as F
from torch import Tensor

from training.fused import fused
from training.model import Model

IGNORED = -100


@fused
def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of [rows, hidden] against targets [rows], and the likeliest token of each row."""
    logits = F.linear(hidden, weight.to(hidden.dtype))
    return F.cross_entropy(logits.float(), targets, ignore_index=IGNORED), logits.argmax(-1)


def trunk_loss(model: Model, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """tokens [batch, time + 1]: cross-entropy, balance, residual, likeliest tokens [batch, time], mixer inputs."""
    out = model.run(tokens[:, :-1])
    loss, best = head_loss(out.hidden.flatten(0, 1), model.lm_head.weight, tokens[:, 1:].flatten())
    return loss, out.balance, out.residual, best.view(tokens.shape[0], -1), out.mixer_inputs


def draft_loss(model: Model, tokens: Tensor, residual: Tensor, best: Tensor, ahead: int) -> Tensor:
    """Cross-entropy of drafts 1 to `ahead` against the token that the trunk itself would choose.

    Draft n + 1 reads, at position i, what draft n left at position i - 1.
    """
    following, residual = tokens[:, 1:], residual.detach()
    targets = F.pad(best[:, 1:], (0, 1), value=IGNORED)
    weight, losses = model.lm_head.weight.detach(), []
    for number in range(ahead):
        residual, hidden, balance = model.draft(residual, following)
        targets = targets.clone()
        targets[:, :number] = IGNORED
        loss, _ = head_loss(hidden.flatten(0, 1), weight, targets.flatten())
        losses.append(loss + 0.01 * balance)
        residual = F.pad(residual[:, :-1], (0, 0, 1, 0))
    return torch.stack(losses).mean()
