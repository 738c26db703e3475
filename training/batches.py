"""Token windows: which ones a step reads follows from its number alone, so that a run can be taken up again."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SHARES = {"english": 0.42, "code": 0.28, "chinese": 0.30}


class Batches:
    """Windows of every domain's tokens."""

    def __init__(self, directory: Path, device: str, seed: int = 0, prefix: str = "train"):
        self.tokens = {d: _load(directory / f"{prefix}-{d}.npy").to(device) for d in SHARES}
        self.device, self.seed = device, seed

    def step(self, number: int, rows: int, length: int) -> Tensor:
        """int64 [rows, length + 1], domains by their shares."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        bounds = np.round(np.cumsum([0, *SHARES.values()]) * rows).astype(int)
        parts = []
        for domain, first, last in zip(SHARES, bounds, bounds[1:], strict=False):
            tokens = self.tokens[domain]
            starts = torch.randint(0, len(tokens) - length - 1, (int(last - first),), generator=generator)
            index = starts.to(self.device)[:, None] + torch.arange(length + 1, device=self.device)
            parts.append(tokens[index])
        return torch.cat(parts).long()

    def windows(self, domain: str, rows: int, length: int) -> Tensor:
        """The first `rows` windows of a domain, fewer where it is shorter."""
        tokens = self.tokens[domain]
        rows = min(rows, (len(tokens) - 1) // length)
        index = torch.arange(rows, device=self.device)[:, None] * length
        return tokens[index + torch.arange(length + 1, device=self.device)].long()


def _load(path: Path) -> Tensor:
    return torch.from_numpy(np.load(path).astype(np.int32))
